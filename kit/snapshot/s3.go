package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Config says where an object store keeps snapshots. Its credentials are in a file, and never in a message, an error
// or the log.
type S3Config struct {
	Endpoint string // https://HOST[:PORT], or http:// for a store on the same host
	Region   string // empty: the store's own
	Bucket   string // must exist
	Prefix   string // of the objects' names; may be empty
	// in the format of ~/.aws/credentials, section [default]; empty: the environment's AWS_… variables
	CredentialsFile string
}

// S3 stores snapshots by the S3 protocol, each as the objects PREFIX/NAME.db and PREFIX/NAME.json, and
// PREFIX/NAME.keys.age if there are keys.
type S3 struct {
	cfg    S3Config
	client *minio.Client
}

// NewS3 returns the snapshots in a bucket. Nothing is called before they are used.
func NewS3(cfg S3Config) (*S3, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("the endpoint must be of the form https://HOST:PORT")
	}
	if cfg.Bucket == "" {
		return nil, errors.New("a bucket is required")
	}
	keys := credentials.NewEnvAWS()
	if cfg.CredentialsFile != "" { // it is read when it is used
		keys = credentials.NewFileAWSCredentials(cfg.CredentialsFile, "default")
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: keys, Secure: u.Scheme == "https", Region: cfg.Region, BucketLookup: minio.BucketLookupPath, MaxRetries: 3,
	})
	if err != nil {
		return nil, err
	}
	return &S3{cfg: cfg, client: client}, nil
}

// Location returns where a snapshot is, for people.
func (s *S3) Location(name string) string {
	return "s3://" + s.cfg.Bucket + "/" + s.key(name+fileSuffix)
}

func (s *S3) key(file string) string { return path.Join(s.cfg.Prefix, file) }

// Upload stores the checked snapshot in a file, with keys beside it unless they are nil. It reads the objects back and
// compares their hashes before it writes the
// description by which the snapshot counts as complete. After a failure nothing of it counts. The error wraps
// fs.ErrExist if there is a complete snapshot of that name, which stays as it is.
func (s *S3) Upload(ctx context.Context, file string, keys *Keys, info Info) (Info, error) {
	key := s.key(info.Name + fileSuffix)
	if had, err := s.Info(ctx, info.Name); err == nil {
		return Info{}, exists(had)
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrBroken) {
		return Info{}, err
	}
	if err := s.remove(ctx, info.Name, infoSuffix); err != nil { // one that cannot be read
		return Info{}, err
	}
	_, err := s.client.FPutObject(ctx, s.cfg.Bucket, key, file, minio.PutObjectOptions{
		ContentType: "application/octet-stream",
	})
	if err != nil {
		return Info{}, errors.Join(s.explain("write "+info.Name, err), s.discard(ctx, info.Name))
	}
	if err := s.compare(ctx, key, info); err != nil {
		return Info{}, errors.Join(err, s.discard(ctx, info.Name))
	}
	if info.SealedKeys = keys.describe(); keys != nil {
		if err := s.storeKeys(ctx, keys, info); err != nil {
			return Info{}, errors.Join(err, s.discard(ctx, info.Name))
		}
	}
	info.VerifyTime = time.Now().UTC().Truncate(time.Second)
	b, err := json.Marshal(info)
	if err != nil {
		return Info{}, err
	}
	if err := s.put(ctx, info.Name+infoSuffix, "application/json", b); err != nil {
		return Info{}, errors.Join(s.explain("describe "+info.Name, err), s.discard(ctx, info.Name))
	}
	return info, nil
}

// storeKeys stores the keys beside a snapshot, and reads them back.
func (s *S3) storeKeys(ctx context.Context, keys *Keys, info Info) error {
	if err := s.put(ctx, info.Name+keysSuffix, "application/octet-stream", keys.Sealed); err != nil {
		return s.explain("write the keys of "+info.Name, err)
	}
	_, err := s.Keys(ctx, info)
	return err
}

func (s *S3) put(ctx context.Context, file, contentType string, content []byte) error {
	_, err := s.client.PutObject(ctx, s.cfg.Bucket, s.key(file), bytes.NewReader(content), int64(len(content)),
		minio.PutObjectOptions{ContentType: contentType})
	return err
}

// maxKeys is how many bytes the keys beside a snapshot may have: more than a host packs for a backup.
const maxKeys = 128 << 20

// Keys returns the encrypted keys beside a snapshot. The error wraps ErrBroken if they are not those that its
// description names.
func (s *S3) Keys(ctx context.Context, info Info) ([]byte, error) {
	if info.SealedKeys == nil {
		return nil, fmt.Errorf("snapshot %s has no keys beside it", info.Name)
	}
	if n := info.SealedKeys.SizeBytes; n < 0 || n > maxKeys {
		return nil, fmt.Errorf("%w: the keys beside %s are said to have %d bytes", ErrBroken, info.Name, n)
	}
	o, err := s.client.GetObject(ctx, s.cfg.Bucket, s.key(info.Name+keysSuffix), minio.GetObjectOptions{})
	if err != nil {
		return nil, s.explain("read the keys of "+info.Name, err)
	}
	defer o.Close()
	sealed, err := io.ReadAll(io.LimitReader(o, info.SealedKeys.SizeBytes+1))
	if err != nil {
		return nil, s.explain("read the keys of "+info.Name, err)
	}
	return sealed, info.SealedKeys.check(info.Name, sealed)
}

// discard removes what was stored of a snapshot, also after ctx has ended.
func (s *S3) discard(ctx context.Context, name string) error {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return s.Remove(ctx, name)
}

// compare reads an object and compares its length and its hash.
func (s *S3) compare(ctx context.Context, key string, info Info) error {
	o, err := s.client.GetObject(ctx, s.cfg.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return s.explain("read back "+info.Name, err)
	}
	defer o.Close()
	h, tail := sha256.New(), make([]byte, sha256.Size)
	n, err := io.CopyN(h, o, info.SizeBytes-sha256.Size)
	if err == nil {
		_, err = io.ReadFull(o, tail)
	}
	if err == nil {
		if more, _ := io.CopyN(io.Discard, o, 1); more > 0 {
			return fmt.Errorf("%w: the store returned more than %d bytes for %s", ErrBroken, info.SizeBytes, info.Name)
		}
	}
	if err != nil {
		return s.explain(fmt.Sprintf("read back %s after %d bytes", info.Name, n), err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != info.SHA256 || hex.EncodeToString(tail) != info.SHA256 {
		return fmt.Errorf("%w: the store returned another hash for %s", ErrBroken, info.Name)
	}
	return nil
}

// List returns the complete snapshots, oldest first.
func (s *S3) List(ctx context.Context) ([]Info, error) {
	prefix := s.cfg.Prefix
	if prefix != "" {
		prefix = strings.TrimSuffix(prefix, "/") + "/"
	}
	var out []Info
	for o := range s.client.ListObjects(ctx, s.cfg.Bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, s.explain("list", o.Err)
		}
		if !strings.HasSuffix(o.Key, infoSuffix) {
			continue
		}
		info, err := s.info(ctx, o.Key)
		if err != nil {
			return nil, err
		}
		out = append(out, info)
	}
	sortInfos(out)
	return out, nil
}

// Info returns the description of a complete snapshot. The error wraps fs.ErrNotExist if there is none.
func (s *S3) Info(ctx context.Context, name string) (Info, error) {
	info, err := s.info(ctx, s.key(name+infoSuffix))
	if err == nil && info.Name != name {
		err = fmt.Errorf("%w: %s describes snapshot %q", ErrBroken, s.key(name+infoSuffix), info.Name)
	}
	return info, err
}

func (s *S3) info(ctx context.Context, key string) (Info, error) {
	const most = 64 << 10 // bytes of a description
	o, err := s.client.GetObject(ctx, s.cfg.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return Info{}, s.explain("read "+key, err)
	}
	defer o.Close()
	b, err := io.ReadAll(io.LimitReader(o, most))
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotFound {
		return Info{}, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	if err != nil {
		return Info{}, s.explain("read "+key, err)
	}
	var info Info
	if err := json.Unmarshal(b, &info); err != nil {
		return Info{}, fmt.Errorf("%w: %s: %w", ErrBroken, key, err)
	}
	return info, nil
}

// Fetch writes a snapshot to w.
func (s *S3) Fetch(ctx context.Context, name string, w io.Writer) error {
	o, err := s.client.GetObject(ctx, s.cfg.Bucket, s.key(name+fileSuffix), minio.GetObjectOptions{})
	if err != nil {
		return s.explain("read "+name, err)
	}
	defer o.Close()
	if _, err := io.Copy(w, o); err != nil {
		return s.explain("read "+name, err)
	}
	return nil
}

// Remove deletes a snapshot, its description first, and the parts of an upload of it that was cut off, which no list
// shows and which the store keeps. One that does not exist is no error.
func (s *S3) Remove(ctx context.Context, name string) error {
	if err := s.remove(ctx, name, infoSuffix); err != nil {
		return err
	}
	return s.removeContent(ctx, name)
}

func (s *S3) removeContent(ctx context.Context, name string) error {
	return errors.Join(s.remove(ctx, name, keysSuffix), s.remove(ctx, name, fileSuffix))
}

// Discard removes what a process left that ended while it wrote a snapshot. A complete one stays.
func (s *S3) Discard(ctx context.Context, name string) error {
	_, err := s.Info(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return s.removeContent(ctx, name)
	}
	return err
}

func (s *S3) remove(ctx context.Context, name, suffix string) error {
	err := s.client.RemoveObject(ctx, s.cfg.Bucket, s.key(name+suffix), minio.RemoveObjectOptions{})
	if err != nil && minio.ToErrorResponse(err).StatusCode != http.StatusNotFound {
		return s.explain("remove "+name, err)
	}
	if suffix != fileSuffix {
		return nil
	}
	err = s.client.RemoveIncompleteUpload(ctx, s.cfg.Bucket, s.key(name+suffix))
	if code := minio.ToErrorResponse(err).Code; err == nil || slices.Contains(noParts, code) {
		return nil
	}
	return s.explain("remove parts of "+name, err)
}

// noParts are the answers of a store that has no parts, or does not show them with these credentials.
var noParts = []string{
	"NoSuchUpload", "NoSuchKey", "NoSuchBucket", "AccessDenied", "NotImplemented",
	"MethodNotAllowed",
}

// explain returns an error with what the store answered. Answers and addresses carry no secret key; a signed request,
// which does carry a signature, is never part of it.
func (s *S3) explain(what string, err error) error {
	if r := minio.ToErrorResponse(err); r.Code != "" {
		return fmt.Errorf("bucket %s: %s: %s (%s)", s.cfg.Bucket, what, r.Message, r.Code)
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // without the address of the request
	}
	return fmt.Errorf("bucket %s: %s: %w", s.cfg.Bucket, what, err)
}
