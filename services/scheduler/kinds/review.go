package kinds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/windlass-dev/windlass/gen/windlass/admission/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/admission/plan"
)

// Webhooks calls custom admission controllers.
type Webhooks interface {
	// Review has a webhook review a write. An error means that it did not answer.
	Review(ctx context.Context, h plan.Hook, r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error)
}

// webhookRules are the rules of a configuration of webhooks.
func webhookRules[T plan.Configuration](t *Tables) resource.Config[T] {
	return resource.Config[T]{
		Validate: func(c T) []object.Fault {
			fields, _ := plan.Check(c.GetWebhooks(), t.reviewed, t.cfg.WebhooksAllowed)
			return fields
		},
		Admit: func(w *resource.Write[T]) error {
			if w.Deletes() {
				return nil
			}
			_, warnings := plan.Check(w.New.GetWebhooks(), t.reviewed, t.cfg.WebhooksAllowed)
			for _, text := range warnings {
				w.Warn(text)
			}
			return nil
		},
	}
}

// webhooksOf returns the rules of custom admission controllers about a kind.
func webhooksOf[T object.Object](t *Tables) *resource.Remote[T] {
	return &resource.Remote[T]{
		Active: t.hasWebhooks,
		Mutate: func(ctx context.Context, w *resource.Write[T]) error { return mutate(ctx, t, w) },
		Review: func(ctx context.Context, w *resource.Write[T]) error { return validate(ctx, t, w) },
	}
}

// hasWebhooks reports whether any webhook may have to be called. Until the configurations were read, one may.
func (t *Tables) hasWebhooks() bool {
	if t.cfg.Webhooks == nil {
		return false
	}
	for range t.MutatingWebhooks.Objects() {
		return true
	}
	for range t.ValidatingWebhooks.Objects() {
		return true
	}
	return !t.MutatingWebhooks.IsSynced() || !t.ValidatingWebhooks.IsSynced()
}

// sides returns the objects of a write, nil where there is none.
func sides[T object.Object](w *resource.Write[T]) (before, after object.Object) {
	if !w.Creates() {
		before = w.Old
	}
	if !w.Deletes() {
		after = w.New
	}
	return before, after
}

// subject reports whether webhooks are called for a write: for every creation, and for the changes and deletions of
// users. What the cluster itself does to an object goes on without them, and so does the removal of finalizers.
func subject[T object.Object](w *resource.Write[T]) bool {
	if w.Creates() {
		return true
	}
	if _, service := w.By.Service(); service || w.Own {
		return false
	}
	return w.Deletes() || !object.Deleting(w.Old) && !onlyStatus(w.Old, w.New)
}

func onlyStatus(before, after object.Object) bool {
	a, b := proto.Clone(before).(object.Object), proto.Clone(after).(object.Object)
	for _, o := range []object.Object{a, b} {
		if f := o.ProtoReflect().Descriptor().Fields().ByName("status"); f != nil {
			o.ProtoReflect().Clear(f)
		}
	}
	return proto.Equal(a, b)
}

// mutate calls the mutating webhooks of a write one after the other.
func mutate[T object.Object](ctx context.Context, t *Tables, w *resource.Write[T]) error {
	if !subject(w) {
		return nil
	}
	if err := t.MutatingWebhooks.WaitSynced(ctx); err != nil {
		return err
	}
	before, after := sides(w)
	typ := object.TypeOf(w.New.ProtoReflect().Descriptor())
	for _, h := range plan.Called(t.MutatingWebhooks.All(), t.reviewedWrite(typ, before, after)) {
		r, err := reviewRequest(typ, w)
		if err != nil {
			return err
		}
		answer, err := t.ask(ctx, h, r, w.Warn)
		if err != nil {
			return refusalOf(err)
		}
		if len(answer.GetPatch()) == 0 {
			continue
		}
		if err := amend(w.New, r.GetObject(), answer.GetPatch()); err != nil {
			return unusable(h, fmt.Errorf("its patch %w", err))
		}
	}
	return nil
}

// validate calls the validating webhooks of a write concurrently. The error names each that refuses it.
func validate[T object.Object](ctx context.Context, t *Tables, w *resource.Write[T]) error {
	if !subject(w) {
		return nil
	}
	if err := t.ValidatingWebhooks.WaitSynced(ctx); err != nil {
		return err
	}
	before, after := sides(w)
	var zero T
	typ := object.TypeOf(zero.ProtoReflect().Descriptor())
	hooks := plan.Called(t.ValidatingWebhooks.All(), t.reviewedWrite(typ, before, after))
	if len(hooks) == 0 {
		return nil
	}
	r, err := reviewRequest(typ, w)
	if err != nil {
		return err
	}
	errs := make([]error, len(hooks))
	warnings := make([][]string, len(hooks))
	var group errgroup.Group
	group.SetLimit(mostAtOnce)
	for i, h := range hooks {
		own := proto.CloneOf(r)
		own.Uid = uuid.NewString()
		group.Go(func() error {
			answer, err := t.ask(ctx, h, own, func(text string) { warnings[i] = append(warnings[i], text) })
			if err == nil && len(answer.GetPatch()) > 0 {
				err = unusable(h, errors.New("it sent a patch, which only a mutating webhook may"))
			}
			errs[i] = err
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	for _, list := range warnings {
		for _, text := range list {
			w.Warn(text)
		}
	}
	return refusalOf(errs...)
}

// mostAtOnce is how many validating webhooks are called for one write concurrently.
const mostAtOnce = 16

// denied is the error of a write that a webhook refuses.
type denied string

func (d denied) Error() string { return string(d) }

// refusalOf returns what the caller gets for the errors of webhooks: all that refuse the write, else the first that did
// not answer.
func refusalOf(errs ...error) error {
	var refusals []string
	for _, err := range errs {
		if d := denied(""); errors.As(err, &d) {
			refusals = append(refusals, d.Error())
		}
	}
	if len(refusals) > 0 {
		return rpcerr.Forbidden(strings.Join(refusals, "; "))
	}
	return cmp.Or(errs...)
}

// ask calls a webhook. The error refuses the write: the webhook does, or it did not answer and its failurePolicy is
// Fail.
func (t *Tables) ask(ctx context.Context, h plan.Hook, r *admissionv1.ReviewRequest, warn func(string)) (
	*admissionv1.ReviewResponse, error,
) {
	answer, err := t.cfg.Webhooks.Review(ctx, h, r)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && h.Ignores():
		warn(fmt.Sprintf("admission webhook %q was ignored: %v", h.GetName(), err))
		return nil, nil
	case err != nil:
		return nil, unusable(h, err)
	}
	for _, text := range answer.GetWarnings()[:min(len(answer.GetWarnings()), mostWarnings)] {
		warn(fmt.Sprintf("admission webhook %q: %s", h.GetName(), brief(text)))
	}
	if !answer.GetAllowed() {
		return nil, denied(fmt.Sprintf("admission webhook %q denied the request: %s", h.GetName(),
			cmp.Or(brief(answer.GetMessage()), "it gave no message")))
	}
	return answer, nil
}

const (
	mostWarnings = 16 // of one answer
	mostText     = 1024
)

// brief returns a text of a webhook that fits a header and a line.
func brief(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	if r := []rune(text); len(r) > mostText {
		return string(r[:mostText-1]) + "…"
	}
	return text
}

// unusable returns the error of a write whose webhook did not answer as it must.
func unusable(h plan.Hook, err error) error {
	return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, h.Kind+"/"+h.Configuration,
		fmt.Sprintf("admission webhook %q failed, and its failurePolicy is Fail: %s", h.GetName(), brief(err.Error())))
}

// reviewedWrite returns what decides which webhooks are called.
func (t *Tables) reviewedWrite(typ *metav1.ResourceType, before, after object.Object) plan.Write {
	w := plan.Write{Type: typ, Operation: plan.Update, Old: before, New: after}
	m := after
	switch {
	case before == nil:
		w.Operation = plan.Create
	case after == nil:
		w.Operation, m = plan.Delete, before
	}
	switch o := m.(type) {
	case *schedulingv1.Namespace:
		w.Namespace = o.GetMetadata()
	default:
		if name := m.GetMetadata().GetNamespace(); name != "" {
			w.Namespace = &metav1.ObjectMeta{Name: name}
			if ns, ok := t.Namespaces.Lookup("", name); ok {
				w.Namespace = ns.GetMetadata()
			}
		}
	}
	return w
}

// reviewRequest returns the request about a write as it is now.
func reviewRequest[T object.Object](typ *metav1.ResourceType, w *resource.Write[T]) (*admissionv1.ReviewRequest,
	error,
) {
	r := &admissionv1.ReviewRequest{
		Uid: uuid.NewString(), Group: typ.GetGroup(), Version: typ.GetVersion(), Kind: typ.GetKind(),
		Resource: typ.GetPlural(), Operation: plan.Update, User: w.By.User, Groups: w.By.Groups, DryRun: w.DryRun,
	}
	if r.User == "" && w.Own {
		r.User, r.Groups = identity.ServiceUser("scheduler"), []string{identity.GroupServices, identity.GroupAuthenticated}
	}
	m := w.New.GetMetadata()
	var err error
	switch {
	case w.Creates():
		r.Operation = plan.Create
	case w.Deletes():
		r.Operation, m = plan.Delete, w.Old.GetMetadata()
		fallthrough
	default:
		if r.OldObject, err = manifest.Encode(w.Old); err != nil {
			return nil, err
		}
	}
	r.Name, r.Namespace = m.GetName(), m.GetNamespace()
	if !w.Deletes() {
		r.Object, err = manifest.Encode(w.New)
	}
	return r, err
}

// amend applies a patch to an object, whose JSON is given. Webhooks may change what a user may.
func amend(obj object.Object, json, patch []byte) error {
	changed, err := manifest.Patch(json, manifest.JSONPatch, patch, obj.ProtoReflect().Descriptor())
	if err != nil {
		return fmt.Errorf("is not valid: %w", err)
	}
	next := obj.ProtoReflect().New().Interface().(object.Object)
	if err := manifest.Decode(changed, next); err != nil {
		return fmt.Errorf("makes an object that is not valid: %w", err)
	}
	if next.GetApiVersion() != obj.GetApiVersion() || next.GetKind() != obj.GetKind() || !sameIdentity(obj, next) {
		return errors.New("changes more than labels, annotations, finalizers, owners and the fields that users write")
	}
	proto.Reset(obj)
	proto.Merge(obj, next)
	return nil
}

// sameIdentity reports whether two objects have the same metadata, except what users may change, and the same status.
func sameIdentity(a, b object.Object) bool {
	x, y := object.Clone(a), object.Clone(b)
	if y.GetMetadata() == nil {
		return false
	}
	for _, m := range []*metav1.ObjectMeta{x.GetMetadata(), y.GetMetadata()} {
		m.Labels, m.Annotations, m.Finalizers, m.OwnerReferences = nil, nil, nil, nil
	}
	if !proto.Equal(x.GetMetadata(), y.GetMetadata()) {
		return false
	}
	f := a.ProtoReflect().Descriptor().Fields().ByName("status")
	return f == nil || a.ProtoReflect().Get(f).Equal(b.ProtoReflect().Get(f))
}
