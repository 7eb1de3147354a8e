package plan

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/webhook"
)

const (
	// extenderTimeout is how long one call of an extender may take if the policy does not say. Source: Kubernetes'
	// DefaultExtenderTimeout.
	extenderTimeout = 5 * time.Second
	// longestExtenderTimeout bounds what a policy may say: as long, a pod waits for an extender that hangs.
	longestExtenderTimeout = 30 * time.Second
)

// Extender is a server that filters and ranks nodes, as a policy describes it. It is not changed by use.
type Extender struct {
	URL        string // without a slash at its end
	Filter     string // path of the call below URL; empty if the extender does not filter
	Prioritize string // path of the call below URL; empty if the extender does not rank
	Weight     int64  // of its scores
	Timeout    time.Duration
	CAData     []byte // authorities of its certificate, in PEM; those of the host if it is empty
	ServerName string // in its certificate; empty means the host of URL
	NamesOnly  bool   // it is sent the names of nodes alone
	Ignorable  bool   // pods are placed without it if it does not answer

	managed map[string]bool // resources that it is asked about, with whether it alone counts them; nil means all pods
}

// Address returns the address of the call that filters or ranks.
func (e *Extender) Address(verb string) string {
	if verb == FilterNodes {
		return e.URL + "/" + e.Filter
	}
	return e.URL + "/" + e.Prioritize
}

// counts reports whether the extender alone counts one of its resources, so that the scheduler cannot know when none is
// left.
func (e *Extender) counts() bool {
	return slices.Contains(slices.Collect(maps.Values(e.managed)), true)
}

// concerns reports whether the extender is asked about a pod.
func (e *Extender) concerns(spec *schedulingv1.PodSpec) bool {
	if e.managed == nil {
		return true
	}
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		for name := range c.GetResources().GetRequests() {
			if _, ok := e.managed[name]; ok {
				return true
			}
		}
	}
	return false
}

// extendersOf returns the extenders that are asked about a pod.
func (p *Profile) extendersOf(spec *schedulingv1.PodSpec) (out []*Extender) {
	for _, e := range p.extenders {
		if e.concerns(spec) {
			out = append(out, e)
		}
	}
	return out
}

// filtersNodes reports whether an extender filters the nodes of a pod.
func (p *Profile) filtersNodes(spec *schedulingv1.PodSpec) *Extender {
	return find(p.extendersOf(spec), func(e *Extender) bool { return e.Filter != "" })
}

// extend gives a profile the extenders of a policy. Those that CheckPolicy refuses are left out.
func (p *Profile) extend(policy *schedulingv1.Policy) {
	for i, raw := range policy.GetExtenders() {
		in, fields := decodeExtender(fmt.Sprintf("extenders[%d]", i), raw)
		if len(fields) > 0 {
			continue
		}
		timeout, _ := extenderDuration(in.GetHttpTimeout())
		e := &Extender{
			URL: strings.TrimRight(in.GetUrlPrefix(), "/"), Filter: in.GetFilterVerb(), Prioritize: in.GetPrioritizeVerb(),
			Weight: int64(in.GetWeight()), Timeout: timeout, CAData: in.GetTlsConfig().GetCaData(),
			ServerName: in.GetTlsConfig().GetServerName(), NamesOnly: in.GetNodeCacheCapable(), Ignorable: in.GetIgnorable(),
		}
		for _, r := range in.GetManagedResources() {
			if e.managed == nil {
				e.managed = map[string]bool{}
			}
			e.managed[r.GetName()] = r.GetIgnoredByScheduler()
			if r.GetIgnoredByScheduler() {
				if p.ignored == nil {
					p.ignored = map[string]bool{}
				}
				p.ignored[r.GetName()] = true
			}
		}
		p.extenders = append(p.extenders, e)
	}
}

// checkExtenders returns the wrong fields of the extenders of a policy.
func checkExtenders(policy *schedulingv1.Policy) (fields []object.Fault) {
	managers := map[string]int{}
	sum := int64(0)
	for _, in := range policy.GetPriorities() {
		sum += int64(max(0, in.GetWeight()))
	}
	for i, raw := range policy.GetExtenders() {
		at := fmt.Sprintf("extenders[%d]", i)
		in, wrong := decodeExtender(at, raw)
		fields = append(fields, wrong...)
		if sum += int64(max(0, in.GetWeight())); sum > maxWeights {
			fields = append(fields, object.Faultf(at+".weight",
				"the weights of priorities and extenders together must not be more than %d, they are %d", maxWeights, sum))
		}
		for n, r := range in.GetManagedResources() {
			if other, taken := managers[r.GetName()]; taken {
				fields = append(fields, object.Faultf(fmt.Sprintf("%s.managedResources[%d].name", at, n),
					"extenders[%d] manages %q already", other, r.GetName()))
			}
			managers[r.GetName()] = i
		}
	}
	return fields
}

// ExtendersNotAllowed returns the addresses of a policy's extenders that an administrator does not allow. allowed is as
// webhook.Allowed describes it.
func ExtendersNotAllowed(policy *schedulingv1.Policy, allowed []string) (fields []object.Fault) {
	for i, e := range policy.GetExtenders() {
		text := e.GetFields()["urlPrefix"].GetStringValue()
		if !webhook.Allowed(strings.TrimRight(text, "/"), allowed) {
			fields = append(fields, object.Faultf(fmt.Sprintf("extenders[%d].urlPrefix", i),
				"is not allowed: an administrator allows addresses with --webhook-allow of scheduler"))
		}
	}
	return fields
}

// verbs are the paths that may be appended to the address of an extender: plain segments.
var verbs = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)

// decodeExtender reads an extender at a path of a policy, and returns its wrong fields.
func decodeExtender(at string, raw *structpb.Struct) (*schedulingv1.SchedulerExtender, []object.Fault) {
	in := &schedulingv1.SchedulerExtender{}
	if fields := unknownFields(at, raw, in.ProtoReflect().Descriptor()); len(fields) > 0 {
		return in, fields
	}
	text, err := raw.MarshalJSON()
	if err == nil {
		err = protojson.Unmarshal(text, in)
	}
	if err != nil {
		return &schedulingv1.SchedulerExtender{}, []object.Fault{object.Faultf(at, "cannot be read: %s",
			brief(err.Error()))}
	}
	return in, checkExtender(at, in)
}

// unknownFields returns the fields of a free form that a message does not have.
func unknownFields(at string, raw *structpb.Struct, d protoreflect.MessageDescriptor) (fields []object.Fault) {
	for _, name := range slices.Sorted(maps.Keys(raw.GetFields())) {
		f := d.Fields().ByJSONName(name)
		if f == nil {
			fields = append(fields, object.Faultf(at+"."+name, "unknown field"))
			continue
		}
		if f.Kind() != protoreflect.MessageKind || !strings.HasPrefix(string(f.Message().FullName()), "windlass.") {
			continue
		}
		value := raw.GetFields()[name]
		if f.IsList() {
			for i, one := range value.GetListValue().GetValues() {
				fields = append(fields, unknownFields(fmt.Sprintf("%s.%s[%d]", at, name, i), one.GetStructValue(), f.Message())...)
			}
			continue
		}
		fields = append(fields, unknownFields(at+"."+name, value.GetStructValue(), f.Message())...)
	}
	return fields
}

func checkExtender(at string, in *schedulingv1.SchedulerExtender) (fields []object.Fault) {
	bad := func(field, format string, a ...any) {
		fields = append(fields, object.Faultf(at+"."+field, format, a...))
	}
	if why := webhook.URLFault(in.GetUrlPrefix()); why != "" {
		bad("urlPrefix", "%s", why)
	} else if strings.Contains(in.GetUrlPrefix(), "?") {
		bad("urlPrefix", "must not have a query")
	}
	if in.EnableHttps != nil && !in.GetEnableHttps() {
		bad("enableHttps", "must not be false: extenders are called over https alone")
	}
	for _, v := range []struct{ field, verb string }{
		{"filterVerb", in.GetFilterVerb()}, {"prioritizeVerb", in.GetPrioritizeVerb()},
	} {
		if v.verb != "" && !verbs.MatchString(v.verb) {
			bad(v.field, "must be a plain path such as filter, without a slash at its ends")
		}
	}
	if in.GetFilterVerb() == "" && in.GetPrioritizeVerb() == "" {
		bad("filterVerb", "must be given, or prioritizeVerb")
	}
	if in.GetBindVerb() != "" {
		bad("bindVerb", "is not in force: the scheduler binds pods itself")
	}
	if in.GetPreemptVerb() != "" {
		bad("preemptVerb", "is not in force: pods whose nodes an extender filters evict no others")
	}
	if w := in.GetWeight(); in.GetPrioritizeVerb() != "" && w < 1 {
		bad("weight", "must be given with prioritizeVerb and be 1 or more")
	} else if w < 0 || w > math.MaxInt32/best {
		bad("weight", "must be 1 to %d", math.MaxInt32/best)
	}
	if _, err := extenderDuration(in.GetHttpTimeout()); err != nil {
		bad("httpTimeout", "%v", err)
	}
	fields = append(fields, checkExtenderTLS(at+".tlsConfig", in.GetTlsConfig())...)
	for i, r := range in.GetManagedResources() {
		if name := r.GetName(); !strings.Contains(name, "/") || strings.HasPrefix(name, "kubernetes.io/") {
			bad(fmt.Sprintf("managedResources[%d].name", i), "must be an extended resource such as example.com/license")
		}
	}
	return fields
}

func checkExtenderTLS(at string, in *schedulingv1.SchedulerExtenderTLS) (fields []object.Fault) {
	for _, f := range []struct {
		field, why string
		given      bool
	}{
		{"insecure", "must not be true: the certificate of an extender is always verified", in.GetInsecure()},
		{"caFile", "is not in force: give caData", in.GetCaFile() != ""},
		{"certFile", "is not in force: no credentials are sent to an extender", in.GetCertFile() != ""},
		{"keyFile", "is not in force: no credentials are sent to an extender", in.GetKeyFile() != ""},
		{"certData", "is not in force: no credentials are sent to an extender", len(in.GetCertData()) > 0},
		{"keyData", "is not in force: no credentials are sent to an extender", len(in.GetKeyData()) > 0},
		{
			"caData", "must contain certificates in PEM",
			len(in.GetCaData()) > 0 && !strings.Contains(string(in.GetCaData()), "-----BEGIN CERTIFICATE-----"),
		},
	} {
		if f.given {
			fields = append(fields, object.Faultf(at+"."+f.field, "%s", f.why))
		}
	}
	return fields
}

// extenderDuration reads httpTimeout: nanoseconds, as Kubernetes' policy file has them, or a text.
func extenderDuration(v *structpb.Value) (time.Duration, error) {
	var d time.Duration
	switch k := v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return extenderTimeout, nil
	case *structpb.Value_NumberValue:
		if math.Trunc(k.NumberValue) == k.NumberValue && math.Abs(k.NumberValue) <= float64(longestExtenderTimeout) {
			d = time.Duration(k.NumberValue)
		}
		if k.NumberValue == 0 {
			d = extenderTimeout
		}
	case *structpb.Value_StringValue:
		d, _ = time.ParseDuration(k.StringValue)
	}
	if d <= 0 || d > longestExtenderTimeout {
		return 0, fmt.Errorf("must be more than 0 and at most %s, as nanoseconds or as a text such as \"5s\"",
			longestExtenderTimeout)
	}
	return d, nil
}

// mostText bounds a text of an extender, in characters.
const mostText = 300

// brief returns a text of others that fits a line.
func brief(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, ""), func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == 0xa0
	}), " ")
	if r := []rune(text); len(r) > mostText {
		return string(r[:mostText-1]) + "…"
	}
	return text
}
