package platform

import (
	"math"
	"net/netip"
	"strings"
)

// Sizes below which OpenShift warns that nodes may not start.
const (
	leastCPUs      = 2
	leastMemoryMiB = 2048
	leastDiskGiB   = 120
)

// vsphere is VSphereMachineProviderSpec.
func vsphere() schema {
	tag := matching(`^urn:vmomi:InventoryServiceTag:[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:[^:]+$`,
		"urn:vmomi:InventoryServiceTag:UUID:GLOBAL")
	return fieldsOf(embedded(map[string]schema{
		"userDataSecret": secret(), "credentialsSecret": secret(),
		"template": schema{}.must(), "snapshot": {},
		"workspace": fieldsOf(map[string]schema{
			"server": schema{}.must(), "datacenter": {}, "folder": {}, "datastore": {}, "resourcePool": {}, "vmGroup": {},
		}).must().with(vsphereWorkspace),
		"network": fieldsOf(map[string]schema{
			"devices": listOf(vsphereDevice()).must(),
		}).must().with(func(r *report, a at) {
			if devices := a.in("devices"); devices.given() && len(devices.items()) == 0 {
				r.missing(devices, "must list at least one device")
			}
		}),
		"numCPUs": number(0, math.MaxInt32), "numCoresPerSocket": number(0, math.MaxInt32),
		"memoryMiB": number(0, 1<<53), "diskGiB": number(0, math.MaxInt32),
		"tagIDs":    listOf(tag).atMost(10),
		"cloneMode": oneOf("fullClone", "linkedClone"),
		"disks": listOf(fieldsOf(map[string]schema{
			"name": {}, "deviceName": {}, "sizeGiB": number(1, math.MaxInt32).must(),
			"provisioningMode": oneOf("Thin", "Thick", "EagerlyZeroed"),
		})).atMost(29),
	})).with(vsphereRules)
}

func vsphereDevice() schema {
	label := `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	return fieldsOf(map[string]schema{
		"networkName": schema{}.must().atMost(80), "gateway": {}, "ipAddrs": listOf(schema{}),
		"nameservers": listOf(schema{}),
		"addressesFromPools": listOf(fieldsOf(map[string]schema{
			"group":    matching(`^`+label+`(\.`+label+`)*$`, "a domain name in lower case").must(),
			"resource": matching(`^`+label+`$`, "letters in lower case, digits and hyphens").must(),
			"name":     matching(`^`+label+`$`, "letters in lower case, digits and hyphens").must(),
		})),
	}).with(func(r *report, a at) {
		for _, ip := range append(a.in("nameservers").items(), a.in("gateway")) {
			if _, err := netip.ParseAddr(ip.text()); ip.given() && err != nil {
				r.fault(ip, "is %q, must be an IP address", ip.text())
			}
		}
		for _, ip := range a.in("ipAddrs").items() {
			if _, err := netip.ParsePrefix(ip.text()); err != nil {
				r.fault(ip, "is %q, must be an IP address with its prefix length, such as 192.168.1.100/24", ip.text())
			}
		}
	})
}

func vsphereWorkspace(r *report, a at) {
	center := a.in("datacenter")
	if !center.given() {
		r.warn(center, "is not given; machines cannot be created if there are several datacenters")
	}
	folder, want := a.in("folder"), "/"+center.text()+"/vm/"
	if folder.given() && !strings.HasPrefix(folder.text(), want) {
		r.fault(folder, "is %q, must be an absolute path that begins with %s", folder.text(), want)
	}
}

func vsphereRules(r *report, a at) {
	r.defaulted(a, "userDataSecret", "credentialsSecret")
	for field, least := range map[string]float64{
		"numCPUs": leastCPUs, "memoryMiB": leastMemoryMiB, "diskGiB": leastDiskGiB,
	} {
		if n := a.in(field).v.GetNumberValue(); n < least {
			r.warn(a.in(field), "is %.0f, less than %.0f: nodes may not start", n, least)
		}
	}
	if a.in("cloneMode").text() == "linkedClone" && a.in("diskGiB").v.GetNumberValue() > 0 {
		r.warn(a.in("diskGiB"), "is ignored for cloneMode linkedClone: the disk is as large as the template's")
	}
}
