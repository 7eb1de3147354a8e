package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Domain is a failure domain, as JSON text of its settings: equal text means the same domain. Empty means that there
// are no domains.
type Domain string

// domainOf returns the domain of each index of the control plane.
type domainOf map[int]Domain

// platforms returns, for each platform that may be named in failureDomains, the field that lists its domains.
func platforms() map[string]string {
	return map[string]string{
		"AWS": "aws", "Azure": "azure", "GCP": "gcp", "OpenStack": "openstack", "VSphere": "vsphere", "Nutanix": "nutanix",
		"Local": "local",
	}
}

// domainList are the failure domains of a control-plane machine set, and their fields in a provider spec.
type domainList struct {
	list   []Domain
	leaves []string          // paths of all settings that any domain has, sorted
	fields map[string]string // by setting: its path in a provider spec, where it differs
}

// DomainFaults returns what is wrong with the failureDomains of a template.
func DomainFaults(raw *structpb.Struct, path string) []object.Fault {
	if len(raw.GetFields()) == 0 {
		return nil
	}
	platform := raw.GetFields()["platform"].GetStringValue()
	key, ok := platforms()[platform]
	if !ok {
		known := slices.Sorted(maps.Keys(platforms()))
		return []object.Fault{object.Faultf(path+".platform", "is %q, must be one of %s", platform,
			strings.Join(known, ", "))}
	}
	var bad []object.Fault
	for _, name := range slices.Sorted(maps.Keys(raw.GetFields())) {
		if name != "platform" && name != key {
			bad = append(bad, object.Faultf(path+"."+name, "must not be given for platform %s", platform))
		}
	}
	list, ok := raw.GetFields()[key]
	if !ok {
		return append(bad, object.Faultf(path+"."+key, "must list the failure domains of platform %s", platform))
	}
	for i, v := range list.GetListValue().GetValues() {
		if len(v.GetStructValue().GetFields()) == 0 {
			bad = append(bad, object.Faultf(fmt.Sprintf("%s.%s[%d]", path, key, i), "must be an object with at least one field"))
		}
	}
	if len(list.GetListValue().GetValues()) == 0 {
		bad = append(bad, object.Faultf(path+"."+key, "must list at least one failure domain"))
	}
	return bad
}

// parseDomains reads the failure domains of a template. fields says where a provider spec has a domain's setting, where
// that is another path than in the domain. Domains are completed from the template's own provider spec, and each counts
// once.
func parseDomains(t *machinev1.OpenShiftMachineV1Beta1MachineTemplate, fields map[string]string) domainList {
	raw := t.GetFailureDomains().GetFields()
	d := domainList{fields: fields}
	var flat []map[string]*structpb.Value
	for _, v := range raw[platforms()[raw["platform"].GetStringValue()]].GetListValue().GetValues() {
		leaves := map[string]*structpb.Value{}
		flatten("", v, leaves)
		flat = append(flat, leaves)
		for l := range leaves {
			d.leaves = append(d.leaves, l)
		}
	}
	slices.Sort(d.leaves)
	d.leaves = slices.Compact(d.leaves)
	for _, leaves := range flat {
		for _, l := range d.leaves {
			if _, ok := leaves[l]; !ok {
				if v := lookup(t.GetSpec().GetProviderSpec().GetValue(), d.path(l)); v != nil {
					leaves[l] = v
				}
			}
		}
		d.list = append(d.list, encodeDomain(leaves))
	}
	slices.Sort(d.list)
	d.list = slices.Compact(d.list)
	return d
}

// List returns the domains in the order of their text.
func (d domainList) List() []Domain { return d.list }

// Of returns the domain that a provider spec names.
func (d domainList) Of(spec *structpb.Struct) Domain {
	if len(d.leaves) == 0 {
		return ""
	}
	leaves := map[string]*structpb.Value{}
	for _, l := range d.leaves {
		if v := lookup(spec, d.path(l)); v != nil {
			leaves[l] = v
		}
	}
	return encodeDomain(leaves)
}

// Inject returns a copy of a provider spec that names a domain.
func (d domainList) Inject(spec *structpb.Struct, domain Domain) *structpb.Struct {
	out := &structpb.Struct{}
	if spec != nil {
		out = proto.Clone(spec).(*structpb.Struct)
	}
	value := &structpb.Struct{}
	if domain == "" || value.UnmarshalJSON([]byte(domain)) != nil {
		return out
	}
	for _, l := range d.leaves {
		if v := lookup(value, l); v != nil {
			put(out, d.path(l), v)
		}
	}
	return out
}

// path returns where a provider spec has a domain's setting: the longest part of the setting's name that fields knows
// is replaced.
func (d domainList) path(leaf string) string {
	for head := leaf; head != ""; {
		if to, ok := d.fields[head]; ok {
			return to + strings.TrimPrefix(leaf, head)
		}
		i := strings.LastIndex(head, ".")
		if i < 0 {
			break
		}
		head = head[:i]
	}
	return leaf
}

func flatten(prefix string, v *structpb.Value, out map[string]*structpb.Value) {
	s := v.GetStructValue()
	if s == nil {
		out[prefix] = v
		return
	}
	for k, f := range s.GetFields() {
		if prefix != "" {
			k = prefix + "." + k
		}
		flatten(k, f, out)
	}
}

func lookup(s *structpb.Struct, path string) *structpb.Value {
	head, rest, deeper := strings.Cut(path, ".")
	v := s.GetFields()[head]
	if v == nil || !deeper {
		return v
	}
	return lookup(v.GetStructValue(), rest)
}

func put(s *structpb.Struct, path string, v *structpb.Value) {
	if s.Fields == nil {
		s.Fields = map[string]*structpb.Value{}
	}
	head, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		s.Fields[head] = v
		return
	}
	inner := s.Fields[head].GetStructValue()
	if inner == nil {
		inner = &structpb.Struct{}
		s.Fields[head] = structpb.NewStructValue(inner)
	}
	put(inner, rest, v)
}

// encodeDomain returns the JSON text of a domain: keys sorted, so that equal domains have equal text.
func encodeDomain(leaves map[string]*structpb.Value) Domain {
	s := &structpb.Struct{}
	for _, l := range slices.Sorted(maps.Keys(leaves)) {
		put(s, l, leaves[l])
	}
	text, err := json.Marshal(s.AsMap())
	if err != nil {
		return Domain(s.String()) // not a number: no JSON, but still the same for the same domain
	}
	return Domain(text)
}

// placement is the present state of one index of the control plane.
type placement struct {
	Domain       Domain // of the newest machine in the index
	OnlyDeleting bool   // nothing but machines that are being deleted
}

// mapDomains returns the domain of each index: at least replicas indexes, evenly spread. An index moves only if its
// domain is no longer listed or holds more than its share. An index that holds only machines which are being deleted
// gives up its claim first. domains must be sorted and without doubles; without domains, no index has one.
func mapDomains(domains []Domain, replicas int, have map[int]placement) domainOf {
	used := slices.Sorted(maps.Keys(have))
	n := max(replicas, len(used))
	base := reindex(baseMapping(orderDomains(domains, have), n), used)
	out, settled := domainOf{}, map[int]bool{}
	for _, i := range used {
		if have[i].OnlyDeleting {
			continue
		}
		out[i] = have[i].Domain
		claim(base, i, have[i].Domain, settled)
	}
	share := ceilDiv(n, max(1, len(distinct(base))))
	for _, i := range slices.Sorted(maps.Keys(base)) {
		p, exists := have[i]
		switch {
		case settled[i]:
			out[i] = base[i]
		case !exists, p.OnlyDeleting, !slices.Contains(domains, p.Domain), count(out, p.Domain) > share:
			out[i] = base[i]
		}
	}
	return out
}

// orderDomains puts domains that host a machine before those that do not; each half stays sorted.
func orderDomains(domains []Domain, have map[int]placement) []Domain {
	var hosting, empty []Domain
	for _, d := range domains {
		hosts := false
		for _, p := range have {
			hosts = hosts || p.Domain == d
		}
		if hosts {
			hosting = append(hosting, d)
		} else {
			empty = append(empty, d)
		}
	}
	return append(hosting, empty...)
}

func baseMapping(domains []Domain, n int) domainOf {
	base := domainOf{}
	for i := range n {
		base[i] = ""
		if len(domains) > 0 {
			base[i] = domains[i%len(domains)]
		}
	}
	return base
}

// reindex renames the indexes of a base mapping that are not in use to those in use that it lacks, both ascending.
func reindex(base domainOf, used []int) domainOf {
	var free []int
	for _, i := range slices.Sorted(maps.Keys(base)) {
		if !slices.Contains(used, i) {
			free = append(free, i)
		}
	}
	for _, u := range used {
		if _, ok := base[u]; ok || len(free) == 0 {
			continue
		}
		base[u] = base[free[0]]
		delete(base, free[0])
		free = free[1:]
	}
	return base
}

// claim gives index i the first free slot of its domain, by a swap.
func claim(base domainOf, i int, d Domain, settled map[int]bool) {
	for _, slot := range slices.Sorted(maps.Keys(base)) {
		if !settled[slot] && base[slot] == d {
			base[i], base[slot] = base[slot], base[i]
			settled[i] = true
			return
		}
	}
}

func distinct(m domainOf) map[Domain]bool {
	out := map[Domain]bool{}
	for _, d := range m {
		out[d] = true
	}
	return out
}

func count(m domainOf, d Domain) (n int) {
	for _, have := range m {
		if have == d {
			n++
		}
	}
	return n
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
