package plan

import (
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

const (
	// When more than highDisk percent of the disk are used, images are removed until lowDisk are. Source: kubelet,
	// imageGCHighThresholdPercent and imageGCLowThresholdPercent.
	highDisk = 85
	lowDisk  = 80
	// minImageAge is how old an unused image is before it is removed. Source: kubelet, imageMinimumGCAge.
	minImageAge = 2 * time.Minute

	// maxNodeImages is how many images a node's status has. Source: kubelet, nodeStatusMaxImages.
	maxNodeImages = 50
)

// ImageView is what is known of an image on the machine.
type ImageView struct {
	Digest         string
	Names          []string
	Bytes          int64
	Detected, Used time.Time
	InUse          bool // a container has it, or is about to get it
}

// CollectView is everything that a decision about unused images depends on.
type CollectView struct {
	Now                 time.Time
	Capacity, Available int64 // of the disk, in bytes; a capacity of 0 is not known
	Images              []ImageView
}

// Collection is which images to remove, the longest unused first.
type Collection struct {
	Remove []ImageView
	Short  int64 // bytes that are to be freed beyond that, and that no image frees
}

// Collect decides which images are removed, as the kubelet does: never one in use. What an image frees is taken to be
// the size of its files.
func Collect(v CollectView) Collection {
	if v.Capacity <= 0 || (v.Capacity-v.Available)*100 < v.Capacity*highDisk {
		return Collection{}
	}
	c := Collection{Short: v.Capacity*(100-lowDisk)/100 - v.Available}
	images := slices.DeleteFunc(slices.Clone(v.Images), func(i ImageView) bool {
		return i.InUse || v.Now.Sub(i.Detected) < minImageAge || v.Now.Sub(i.Used) < minImageAge
	})
	slices.SortStableFunc(images, func(a, b ImageView) int {
		if n := a.Used.Compare(b.Used); n != 0 {
			return n
		}
		return a.Detected.Compare(b.Detected)
	})
	for _, i := range images {
		if c.Short <= 0 {
			break
		}
		c.Remove, c.Short = append(c.Remove, i), c.Short-i.Bytes
	}
	c.Short = max(c.Short, 0)
	return c
}

// NodeImages returns the images of a node's status: the largest ones, which matter most to where pods are placed.
func NodeImages(images []ImageView) []*nodev1.ContainerImage {
	images = slices.DeleteFunc(slices.Clone(images), func(i ImageView) bool { return len(i.Names) == 0 })
	slices.SortStableFunc(images, func(a, b ImageView) int {
		switch {
		case a.Bytes > b.Bytes:
			return -1
		case a.Bytes < b.Bytes:
			return 1
		}
		return 0
	})
	var out []*nodev1.ContainerImage
	for _, i := range images[:min(len(images), maxNodeImages)] {
		out = append(out, &nodev1.ContainerImage{Names: i.Names, SizeBytes: float64(i.Bytes)})
	}
	return out
}
