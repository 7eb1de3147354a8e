package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullPatience is how long a pull may take. CRI says nothing of its progress; runtimes end one that makes none.
const pullPatience = time.Hour

// PullImage has the runtime pull an image without credentials, and returns what the runtime calls it.
func (r *Runtime) PullImage(ctx context.Context, ref string) (id string, err error) {
	out, err := callWithin(ctx, pullPatience, r.images.PullImage, &runtimeapi.PullImageRequest{Image: imageOf(ref)})
	if err != nil {
		return "", fmt.Errorf("pull of image %q: %w", ref, err)
	}
	return out.GetImageRef(), nil
}

// ImagePresent reports whether the runtime has an image.
func (r *Runtime) ImagePresent(ctx context.Context, ref string) (bool, error) {
	out, err := call(ctx, r.images.ImageStatus, &runtimeapi.ImageStatusRequest{Image: imageOf(ref)})
	if err != nil {
		return false, fmt.Errorf("image %q: %w", ref, err)
	}
	return out.GetImage() != nil, nil
}

// RemoveImage removes an image; nil if there is none.
func (r *Runtime) RemoveImage(ctx context.Context, ref string) error {
	_, err := call(ctx, r.images.RemoveImage, &runtimeapi.RemoveImageRequest{Image: imageOf(ref)})
	if notFound(err) != nil {
		return fmt.Errorf("removal of image %q: %w", ref, err)
	}
	return nil
}

// ImageDir returns a directory of the file system that the runtime has images on; empty before Active, and if the
// runtime does not name one that exists here.
func (r *Runtime) ImageDir() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.imageDir
}

// findImageDir asks the runtime for a directory of the file system that it has images on.
func (r *Runtime) findImageDir(ctx context.Context) (string, error) {
	out, err := call(ctx, r.images.ImageFsInfo, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("file system of images: %w", err)
	}
	for _, f := range out.GetImageFilesystems() {
		dir := f.GetFsId().GetMountpoint()
		if _, err := os.Stat(dir); err == nil && filepath.IsAbs(dir) {
			return dir, nil
		}
	}
	return "", errors.New("file system of images: the container runtime names none that exists here")
}

func imageOf(ref string) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: ref} }
