package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// imageFlags is the flags of "adm release new".
type imageFlags struct {
	build            release.Build
	to, created      string
	images           []string
	reference        string
	signingKey, sigs string
	executables      []string
	programs         []string
	executableImage  string
	output           string
}

func newImage(e *session.Env) *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "new --from-dir DIR --version VERSION --to DIR",
		Short: "Create a release image from a directory of manifests",
		Long: `Create a release image from a directory of manifests and add it to an OCI layout. The same
manifests, flags and creation time always produce the same digest.

A file whose name does not begin with 0000_ gets a name with run level 50 and the file's folder as
component. With --executable, the release also brings the programs of Windlass: the executable becomes
an image in the same layout, and each program gets a manifest of kind Program, update-orchestrator first.
With a signing key, the image is also signed and the signature is written to the
signature store.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return create(cmd.Context(), e, &f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.build.From, "from-dir", "", "directory of the manifests")
	fs.StringVar(&f.build.Version, "version", "", "version of the release")
	fs.StringVar(&f.to, "to", "", "directory of the OCI layout; created if it does not exist")
	fs.StringSliceVar(&f.build.Previous, "previous", nil, "versions that can be updated to this release")
	fs.StringArrayVar(&f.images, "image", nil, "image that the release references, as NAME=IMAGE, by digest")
	fs.StringArrayVar(&f.executables, "executable", nil,
		"executable of Windlass that the release brings; may be repeated for other processor architectures")
	fs.StringSliceVar(&f.programs, "program", nil,
		"programs that run from the executable (default all); the others run from what the cluster was started with")
	fs.StringVar(&f.executableImage, "executable-image", "windlass.dev/windlass",
		"name of the image of the executable, without its digest")
	fs.StringVar(&f.build.URL, "url", "", "URL of a page about the release")
	fs.StringVar(&f.created, "created", "",
		"creation time, such as 2026-03-01T12:00:00Z (default $SOURCE_DATE_EPOCH or now)")
	fs.StringVar(&f.reference, "reference", "windlass/release", "name of the image, without its digest")
	fs.StringVar(&f.signingKey, "signing-key", "", "file with the signing key")
	fs.StringVar(&f.sigs, "signature-store", "", "directory for the signature; created if it does not exist")
	fs.StringVarP(&f.output, "output", "o", "", "output format: name")
	needFlags(cmd, "from-dir", "version", "to")
	return cmd
}

func create(ctx context.Context, e *session.Env, f *imageFlags) error {
	form, err := printer.Parse(f.output, printer.Name)
	if err != nil {
		return err
	}
	if (f.signingKey == "") != (f.sigs == "") {
		return errors.New("--signing-key and --signature-store must be specified together")
	}
	if f.build.Images, err = imagePairs(f.images); err != nil {
		return err
	}
	if f.build.Created, err = creation(f.created, time.Now()); err != nil {
		return err
	}
	var key release.Key
	if f.signingKey != "" {
		if key, err = readKey(f.signingKey); err != nil {
			return err
		}
	}
	for _, name := range f.programs {
		if !slices.Contains(topology.UpdateOrder(), name) {
			return fmt.Errorf("--program %s: must be one of %s", name, strings.Join(topology.UpdateOrder(), ", "))
		}
	}
	if len(f.programs) > 0 && len(f.executables) == 0 {
		return errors.New("--program requires --executable")
	}
	if len(f.executables) > 0 {
		if err := f.bringPrograms(ctx); err != nil {
			return err
		}
	}
	digest, err := release.New(f.to, f.build)
	if err != nil {
		return err
	}
	if err := warnRefused(ctx, e, f, digest); err != nil {
		return err
	}
	said := e.Out
	if form.Word == printer.Name {
		said = e.Err
	}
	fmt.Fprintf(said, "Created release %s in %s with digest %s\n", f.build.Version, f.to, digest)
	if f.signingKey != "" {
		path, err := key.Sign(f.sigs, digest, f.reference, time.Now())
		if err != nil {
			return err
		}
		fmt.Fprintf(said, "Signature: %s\n", path)
	}
	if form.Word == printer.Name {
		_, err = fmt.Fprintln(e.Out, f.reference+"@"+digest)
	} else {
		_, err = fmt.Fprintf(e.Out, "Image: %s@%s\n", f.reference, digest)
	}
	return err
}

// warnRefused warns of manifests that a cluster does not apply, unless it is of another profile or feature set than
// most, and of a release that no cluster accepts.
func warnRefused(ctx context.Context, e *session.Env, f *imageFlags, digest string) error {
	p, err := (&source{}).load(ctx, "oci:"+f.to+"@"+digest)
	if err != nil {
		return err
	}
	if err := release.CheckTrust(p, time.Now()); err != nil {
		fmt.Fprintf(e.Err, "warning: every cluster refuses this release: %v\n", err)
	}
	most := p.Select(release.Cluster{Profile: release.DefaultProfile, FeatureSet: release.DefaultFeatureSet})
	for _, m := range p.Manifests {
		if why := most.Excluded(m); why != "" {
			fmt.Fprintf(e.Err, "warning: %s: %s %q will not be applied: %s\n", m.File, m.Kind, m.Name, why)
		}
	}
	return nil
}

// creation returns the creation time of a release. Source: reproducible-builds.org, SOURCE_DATE_EPOCH.
func creation(flag string, now time.Time) (time.Time, error) {
	if flag != "" {
		t, err := time.Parse(time.RFC3339, flag)
		if err != nil {
			return t, fmt.Errorf("--created %q is not a time such as 2026-03-01T12:00:00Z", flag)
		}
		return t, nil
	}
	epoch := strings.TrimSpace(os.Getenv("SOURCE_DATE_EPOCH"))
	if epoch == "" {
		return now, nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return now, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", epoch)
	}
	return time.Unix(seconds, 0), nil
}
