package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/release"
)

// releaseNew is the flags of "adm release new".
type releaseNew struct {
	build            release.Build
	to, created      string
	images           []string
	reference        string
	signingKey, sigs string
	output           string
}

func newReleaseNew(e *env) *cobra.Command {
	var f releaseNew
	cmd := &cobra.Command{
		Use:   "new --from-dir DIR --version VERSION --to DIR",
		Short: "Make a release image from a directory of manifests",
		Long: `Make a release image from a directory of manifests, and add it to an OCI layout. The same manifests, flags and time of creation always give
the same digest.

A file that does not begin with 0000_ gets a name of run level 50, with the folder that it stands in as its component. With a signing key, the
image is signed too: the signature goes to the store for those who verify it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.releaseNew(cmd.Context(), &f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.build.From, "from-dir", "", "directory of the manifests")
	fs.StringVar(&f.build.Version, "version", "", "version of the release")
	fs.StringVar(&f.to, "to", "", "directory of the OCI layout; it is made if it is not there")
	fs.StringSliceVar(&f.build.Previous, "previous", nil, "versions that it is an update for")
	fs.StringArrayVar(&f.images, "image", nil, "image that the release refers to, as NAME=IMAGE, by digest")
	fs.StringVar(&f.build.URL, "url", "", "page about the release")
	fs.StringVar(&f.created, "created", "", "time of creation, as in 2026-03-01T12:00:00Z (default $SOURCE_DATE_EPOCH or now)")
	fs.StringVar(&f.reference, "reference", "windlass/release", "name of the image, to which its digest is added")
	fs.StringVar(&f.signingKey, "signing-key", "", "file with the key to sign with")
	fs.StringVar(&f.sigs, "signature-store", "", "directory for the signature; it is made if it is not there")
	fs.StringVarP(&f.output, "output", "o", "", "name prints the name of the image alone")
	needFlags(cmd, "from-dir", "version", "to")
	return cmd
}

func (e *env) releaseNew(ctx context.Context, f *releaseNew) error {
	form, err := parseFormat(f.output, formatName)
	if err != nil {
		return err
	}
	if (f.signingKey == "") != (f.sigs == "") {
		return errors.New("--signing-key and --signature-store must be given together")
	}
	if f.build.Images, err = imagePairs(f.images); err != nil {
		return err
	}
	if f.build.Created, err = creation(f.created, time.Now()); err != nil {
		return err
	}
	var key release.Key
	if f.signingKey != "" {
		raw, err := os.ReadFile(f.signingKey)
		if err != nil {
			return err
		}
		if key, err = release.ReadKey(raw); err != nil {
			return fmt.Errorf("%s: %w", f.signingKey, err)
		}
	}
	digest, err := release.New(f.to, f.build)
	if err != nil {
		return err
	}
	if err := e.warnExcluded(ctx, f, digest); err != nil {
		return err
	}
	said := e.out
	if form.word == formatName {
		said = e.err
	}
	fmt.Fprintf(said, "Created release %s in %s with digest %s\n", f.build.Version, f.to, digest)
	if f.signingKey != "" {
		path, err := key.Sign(f.sigs, digest, f.reference, time.Now())
		if err != nil {
			return err
		}
		fmt.Fprintf(said, "Signed it: %s\n", path)
	}
	if form.word == formatName {
		_, err = fmt.Fprintln(e.out, f.reference+"@"+digest)
	} else {
		_, err = fmt.Fprintf(e.out, "Image: %s@%s\n", f.reference, digest)
	}
	return err
}

// defaultProfile is the profile of clusters for which a manifest must say that it is meant.
const defaultProfile = "self-managed-high-availability"

// warnExcluded tells of manifests that no cluster will apply.
func (e *env) warnExcluded(ctx context.Context, f *releaseNew, digest string) error {
	p, err := (&releaseSource{}).load(ctx, "oci:"+f.to+"@"+digest)
	if err != nil {
		return err
	}
	for _, m := range p.Manifests {
		if why := m.Excluded("", defaultProfile); why != "" {
			fmt.Fprintf(e.err, "warning: %s: %s %q will not be applied: %s\n", m.File, m.Kind, m.Name, why)
		}
	}
	return nil
}

// creation reads the time of creation. Source: reproducible-builds.org, SOURCE_DATE_EPOCH.
func creation(flag string, now time.Time) (time.Time, error) {
	if flag != "" {
		t, err := time.Parse(time.RFC3339, flag)
		if err != nil {
			return t, fmt.Errorf("--created %q is no time as in 2026-03-01T12:00:00Z", flag)
		}
		return t, nil
	}
	epoch := strings.TrimSpace(os.Getenv("SOURCE_DATE_EPOCH"))
	if epoch == "" {
		return now, nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return now, fmt.Errorf("SOURCE_DATE_EPOCH %q is no number of seconds", epoch)
	}
	return time.Unix(seconds, 0), nil
}
