package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	admissionv1 "github.com/windlass-dev/windlass/gen/windlass/admission/v1"
	"github.com/windlass-dev/windlass/kit/webhook"
	"github.com/windlass-dev/windlass/kit/webhook/reach"
)

const (
	reviewVersion = "admission.k8s.io/v1"
	reviewKind    = "AdmissionReview"
)

// review is AdmissionReview of admission.k8s.io/v1.
type review struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Request    *reviewRequest  `json:"request,omitempty"`
	Response   *reviewResponse `json:"response,omitempty"`
}

type reviewRequest struct {
	UID             string          `json:"uid"`
	Kind            groupKind       `json:"kind"`
	Resource        groupResource   `json:"resource"`
	RequestKind     groupKind       `json:"requestKind"`
	RequestResource groupResource   `json:"requestResource"`
	Name            string          `json:"name,omitempty"`
	Namespace       string          `json:"namespace,omitempty"`
	Operation       string          `json:"operation"`
	UserInfo        userInfo        `json:"userInfo"`
	Object          json.RawMessage `json:"object"` // null for DELETE
	OldObject       json.RawMessage `json:"oldObject"`
	DryRun          bool            `json:"dryRun"`
	Options         options         `json:"options"`
}

type groupKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type groupResource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

type userInfo struct {
	Username string   `json:"username"`
	Groups   []string `json:"groups,omitempty"`
}

type options struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	DryRun     []string `json:"dryRun,omitempty"`
}

type reviewResponse struct {
	UID       string   `json:"uid"`
	Allowed   bool     `json:"allowed"`
	Status    status   `json:"status"`
	Patch     []byte   `json:"patch,omitempty"`
	PatchType string   `json:"patchType,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
}

type status struct {
	Message string `json:"message,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// https is a webhook that speaks AdmissionReview.
type https struct {
	url    string
	client *reach.Client
}

func newHTTPS(address string, caBundle []byte, allowed func(netip.Addr) error) (*https, error) {
	c, err := reach.NewClient(reach.Server{CABundle: caBundle, Calls: perWebhook, Allowed: allowed}, "windlass-scheduler")
	if err != nil {
		return nil, fmt.Errorf("clientConfig.caBundle: %w", err)
	}
	return &https{url: address, client: c}, nil
}

func (h *https) close() { h.client.Close() }

func (h *https) review(ctx context.Context, r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
	body, err := json.Marshal(review{APIVersion: reviewVersion, Kind: reviewKind, Request: requestOf(r)})
	if err != nil {
		return nil, err
	}
	raw, err := h.client.Post(ctx, h.url, body, mostAnswer)
	if err != nil {
		return nil, err
	}
	answer, err := responseOf(raw, r.GetUid())
	if err != nil {
		return nil, fmt.Errorf("the answer of %s: %w", webhook.Shown(h.url), err)
	}
	return answer, nil
}

func requestOf(r *admissionv1.ReviewRequest) *reviewRequest {
	kind := groupKind{r.GetGroup(), r.GetVersion(), r.GetKind()}
	resource := groupResource{r.GetGroup(), r.GetVersion(), r.GetResource()}
	out := &reviewRequest{
		UID: r.GetUid(), Kind: kind, Resource: resource, RequestKind: kind, RequestResource: resource, Name: r.GetName(),
		Namespace: r.GetNamespace(), Operation: r.GetOperation(), Object: r.GetObject(), OldObject: r.GetOldObject(),
		UserInfo: userInfo{Username: r.GetUser(), Groups: r.GetGroups()}, DryRun: r.GetDryRun(),
		Options: options{
			APIVersion: "meta.k8s.io/v1",
			Kind: map[string]string{
				"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions",
			}[r.GetOperation()],
		},
	}
	if r.GetDryRun() {
		out.Options.DryRun = []string{"All"}
	}
	return out
}

// responseOf reads an answer to the request with a uid.
func responseOf(raw []byte, uid string) (*admissionv1.ReviewResponse, error) {
	var a review
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, err
	}
	switch r := a.Response; {
	case a.APIVersion != reviewVersion || a.Kind != reviewKind:
		return nil, fmt.Errorf("is %s %s, must be %s %s", a.APIVersion, a.Kind, reviewVersion, reviewKind)
	case r == nil:
		return nil, errors.New("response: must be given")
	case r.UID != uid:
		return nil, fmt.Errorf("response.uid: is %q, must be %q, that of the request", r.UID, uid)
	case len(r.Patch) > 0 && r.PatchType != "JSONPatch":
		return nil, fmt.Errorf("response.patchType: is %q, must be JSONPatch", r.PatchType)
	case len(r.Patch) == 0 && r.PatchType != "":
		return nil, errors.New("response.patch: must be given with patchType")
	default:
		message := r.Status.Message
		if message == "" {
			message = r.Status.Reason
		}
		return &admissionv1.ReviewResponse{
			Allowed: r.Allowed, Message: message, Patch: r.Patch, Warnings: r.Warnings,
		}, nil
	}
}
