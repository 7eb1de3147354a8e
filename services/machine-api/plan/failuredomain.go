package plan

import (
	"cmp"
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
		"Local": "local", "Inventory": "inventory",
	}
}

// settingsOf returns the settings that a failure domain of a platform may have; nil if any is accepted. Source:
// OpenShift's ControlPlaneMachineSet; docs/hosts.md for the inventory.
func settingsOf(platform string) []string {
	switch platform {
	case "AWS":
		return []string{"placement.availabilityZone", awsSubnet}
	case "Azure":
		return []string{"subnet", "zone"}
	case "Inventory":
		return []string{"zone"}
	}
	return nil
}

// awsSubnet is one setting, though it is an object: a subnet by id, by arn or by filters. In a failure domain it says
// which in its field type, which a provider spec does not have.
const awsSubnet = "subnet"

// withoutDomains is the platform that is known to have no failure domains. Source: OpenShift's documents, table 13.2.
const withoutDomains = "VSphere"

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
	if platform == withoutDomains {
		return []object.Fault{object.Faultf(path, "must not be given: platform %s has no failure domains", platform)}
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
		bad = append(bad, domainFaults(v, platform, fmt.Sprintf("%s.%s[%d]", path, key, i))...)
	}
	if len(list.GetListValue().GetValues()) == 0 {
		bad = append(bad, object.Faultf(path+"."+key, "must list at least one failure domain"))
	}
	return bad
}

// specPlatform returns the platform that the kind of a provider spec is for: of OpenShift's documents, or of the
// inventory; empty for any other kind.
func specPlatform(spec *structpb.Struct) string {
	switch spec.GetFields()["kind"].GetStringValue() {
	case "AWSMachineProviderConfig":
		return "AWS"
	case "AzureMachineProviderSpec":
		return "Azure"
	case "VSphereMachineProviderSpec":
		return withoutDomains
	case "InventoryMachineProviderSpec":
		return "Inventory"
	}
	return ""
}

// SpecDomainFaults returns what is wrong with the failure domains of a template whose provider spec is for one of the
// platforms of OpenShift's documents: they must be of the same platform. path is that of the failure domains.
func SpecDomainFaults(t *machinev1.OpenShiftMachineV1Beta1MachineTemplate, path string) []object.Fault {
	is := t.GetFailureDomains().GetFields()["platform"].GetStringValue()
	want := specPlatform(t.GetSpec().GetProviderSpec().GetValue())
	switch {
	case want == "" || is == "" || is == want:
		return nil
	case want == withoutDomains:
		return []object.Fault{object.Faultf(path, "must not be given: platform %s has no failure domains", want)}
	}
	return []object.Fault{
		object.Faultf(path+".platform", "is %q, must be %q, the platform of the provider spec", is, want),
	}
}

// WithFirstDomain returns the provider spec of a template as a machine in the first of its failure domains gets it.
// fields are those of the provider.
func WithFirstDomain(t *machinev1.OpenShiftMachineV1Beta1MachineTemplate, fields map[string]string) *structpb.Struct {
	d := parseDomains(t, fields)
	if len(d.list) == 0 {
		return t.GetSpec().GetProviderSpec().GetValue()
	}
	return d.Inject(t.GetSpec().GetProviderSpec().GetValue(), d.list[0])
}

// domainFaults returns what is wrong with one failure domain.
func domainFaults(v *structpb.Value, platform, path string) []object.Fault {
	if len(v.GetStructValue().GetFields()) == 0 {
		return []object.Fault{object.Faultf(path, "must be an object with at least one field")}
	}
	known := settingsOf(platform)
	if known == nil {
		return nil
	}
	var bad []object.Fault
	leaves := domainSettings(v, platform)
	for _, l := range slices.Sorted(maps.Keys(leaves)) {
		if !slices.Contains(known, l) {
			bad = append(bad, object.Faultf(path+"."+l, "is no setting of a failure domain of platform %s: they are %s",
				platform, strings.Join(known, ", ")))
		} else if l != awsSubnet || platform != "AWS" {
			if leaves[l].GetStringValue() == "" {
				bad = append(bad, object.Faultf(path+"."+l, "must be a string that is not empty"))
			}
		}
	}
	if platform == "AWS" {
		bad = append(bad, subnetFaults(v.GetStructValue().GetFields()[awsSubnet], path+"."+awsSubnet)...)
	}
	return bad
}

// subnetFaults returns what is wrong with the subnet of a failure domain of AWS.
func subnetFaults(v *structpb.Value, path string) []object.Fault {
	if v == nil {
		return nil
	}
	types := map[string]string{"ID": "id", "ARN": "arn", "Filters": "filters"}
	typ := v.GetStructValue().GetFields()["type"].GetStringValue()
	field, ok := types[typ]
	if !ok {
		return []object.Fault{object.Faultf(path+".type", "is %q, must be ID, ARN or Filters", typ)}
	}
	var bad []object.Fault
	if v.GetStructValue().GetFields()[field] == nil {
		bad = append(bad, object.Faultf(path+"."+field, "must be given for type %s", typ))
	}
	for _, name := range slices.Sorted(maps.Keys(v.GetStructValue().GetFields())) {
		if name != "type" && name != field {
			bad = append(bad, object.Faultf(path+"."+name, "must not be given for type %s", typ))
		}
	}
	return bad
}

// DuplicateDomains returns the failure domains that are listed more than once.
func DuplicateDomains(raw *structpb.Struct, path string) []object.Fault {
	platform := raw.GetFields()["platform"].GetStringValue()
	key := platforms()[platform]
	var bad []object.Fault
	first := map[Domain]int{}
	for i, v := range raw.GetFields()[key].GetListValue().GetValues() {
		d := encodeDomain(domainSettings(v, platform))
		if j, ok := first[d]; ok {
			bad = append(bad, object.Faultf(fmt.Sprintf("%s.%s[%d]", path, key, i), "is the same as %s[%d]", key, j))
			continue
		}
		first[d] = i
	}
	return bad
}

// domainSettings returns the settings of a failure domain by their paths.
func domainSettings(v *structpb.Value, platform string) map[string]*structpb.Value {
	leaves := map[string]*structpb.Value{}
	fields := maps.Clone(v.GetStructValue().GetFields())
	if subnet := fields[awsSubnet].GetStructValue(); platform == "AWS" && subnet != nil {
		plain := &structpb.Struct{Fields: maps.Clone(subnet.GetFields())}
		delete(plain.Fields, "type")
		leaves[awsSubnet] = structpb.NewStructValue(plain)
		delete(fields, awsSubnet)
	}
	if len(fields) > 0 {
		flatten("", structpb.NewStructValue(&structpb.Struct{Fields: fields}), leaves)
	}
	return leaves
}

// parseDomains reads the failure domains of a template. fields says where a provider spec has a domain's setting, where
// that is another path than in the domain. Domains are completed from the template's own provider spec, and each counts
// once.
func parseDomains(t *machinev1.OpenShiftMachineV1Beta1MachineTemplate, fields map[string]string) domainList {
	raw := t.GetFailureDomains().GetFields()
	d := domainList{fields: fields}
	var flat []map[string]*structpb.Value
	platform := raw["platform"].GetStringValue()
	for _, v := range raw[platforms()[platform]].GetListValue().GetValues() {
		leaves := domainSettings(v, platform)
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

// withSettings returns d with the settings that the platform of a provider spec has, where no domains are listed: so
// that machines can be compared by where they are. fields are those of the provider, as for parseDomains.
func (d domainList) withSettings(spec *structpb.Struct) domainList {
	if len(d.leaves) == 0 {
		d.leaves = settingsOf(specPlatform(spec))
	}
	if len(d.leaves) == 0 {
		d.leaves = slices.Sorted(maps.Keys(d.fields))
	}
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

// Observed returns the domain that a provider spec names, also if no domains are listed; empty if it names none.
func (d domainList) Observed(spec *structpb.Struct) Domain {
	if in := d.withSettings(spec).Of(spec); in != encodeDomain(nil) {
		return in
	}
	return ""
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

// indexDomain is the present state of one index of the control plane.
type indexDomain struct {
	Domain       Domain // of the newest machine in the index
	OnlyDeleting bool   // nothing but machines that are being deleted
}

// mapDomains returns the domain of each index: at least replicas indexes, evenly spread, so that no domain has two more
// than another. An index moves only if its domain is no longer listed or has more than its share; of a domain with too
// many, the highest indexes move. Each index that needs a domain gets the one with the fewest indexes; among equals the
// one that fewest machines hold, those that are being deleted included, then the one of its place in the order of
// names. domains must be sorted and without duplicates; without domains, no index has one. Source: OpenShift's
// documents, balancing of control-plane machines.
func mapDomains(domains []Domain, replicas int, have map[int]indexDomain) domainOf {
	used := slices.Sorted(maps.Keys(have))
	n := max(replicas, len(used))
	base := reindex(baseMapping(orderDomains(domains, have), n), used)
	if len(domains) == 0 {
		return base
	}
	out := kept(domains, n, used, have)
	load, held := map[Domain]int{}, map[Domain]int{}
	for _, d := range out {
		load[d]++
	}
	for _, p := range have {
		held[p.Domain]++
	}
	for _, i := range slices.Sorted(maps.Keys(base)) {
		if _, ok := out[i]; ok {
			continue
		}
		out[i] = slices.MinFunc(domains, func(a, b Domain) int {
			return cmp.Or(cmp.Compare(load[a], load[b]), cmp.Compare(held[a], held[b]), later(a == base[i], b == base[i]))
		})
		load[out[i]]++
	}
	return out
}

// kept returns the indexes that keep their domain: those with a machine that stays in a listed domain, up to the
// domain's share. Where n machines do not divide evenly, the domains with most machines have one more.
func kept(domains []Domain, n int, used []int, have map[int]indexDomain) domainOf {
	in := map[Domain][]int{}
	for _, i := range used {
		if p := have[i]; !p.OnlyDeleting {
			in[p.Domain] = append(in[p.Domain], i)
		}
	}
	byUse := slices.Clone(domains)
	slices.SortStableFunc(byUse, func(a, b Domain) int { return cmp.Compare(len(in[b]), len(in[a])) })
	out := domainOf{}
	for place, d := range byUse {
		share := n / len(domains)
		if place < n%len(domains) {
			share++
		}
		for _, i := range in[d][:min(share, len(in[d]))] {
			out[i] = d
		}
	}
	return out
}

// orderDomains puts domains that host a machine before those that do not; each half stays sorted.
func orderDomains(domains []Domain, have map[int]indexDomain) []Domain {
	hosts := map[Domain]bool{}
	for _, p := range have {
		hosts[p.Domain] = true
	}
	out := slices.Clone(domains)
	slices.SortStableFunc(out, func(a, b Domain) int { return later(hosts[a], hosts[b]) })
	return out
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
	inUse := map[int]bool{}
	for _, i := range used {
		inUse[i] = true
	}
	var free []int
	for _, i := range slices.Sorted(maps.Keys(base)) {
		if !inUse[i] {
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
