package platform

import (
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/placement"
)

// azure is AzureMachineProviderSpec.
func azure() schema {
	return fieldsOf(embedded(map[string]schema{
		"userDataSecret": secret("namespace"), "credentialsSecret": secret("namespace"),
		"location": {}, "vmSize": {}, "sshPublicKey": {}, "securityGroup": {}, "subnet": {}, "vnet": {}, "zone": {},
		"publicLoadBalancer": {}, "internalLoadBalancer": {}, "managedIdentity": {}, "networkResourceGroup": {},
		"resourceGroup": {}, "availabilitySet": {},
		"image": fieldsOf(map[string]schema{
			"publisher": {}, "offer": {}, "sku": {}, "version": {}, "resourceID": {},
			"type": oneOf("ID", "MarketplaceWithPlan", "MarketplaceNoPlan"),
		}).with(azureImage),
		"osDisk":                    azureSystemDisk().must(),
		"dataDisks":                 listOf(azureDataDisk()).with(azureDataDisks),
		"publicIP":                  yesNo(),
		"tags":                      fieldsOf(nil),
		"applicationSecurityGroups": listOf(schema{}),
		"natRule":                   int64s(),
		"spotVMOptions":             fieldsOf(map[string]schema{"maxPrice": {form: anything}}).with(azureSpot),
		"securityProfile": fieldsOf(map[string]schema{
			"encryptionAtHost": yesNo(), "settings": azureSecurity(),
		}),
		"ultraSSDCapability":    oneOf("Enabled", "Disabled"),
		"acceleratedNetworking": yesNo(),
		"diagnostics":           fieldsOf(map[string]schema{"boot": azureBoot()}),
		"capacityReservationGroupID": matching(`(?i)^(azure://)?/(subscriptions|providers)/[^/]`,
			"a resource id that begins with /subscriptions/ID or /providers/NAME"),
	})).with(azureRules)
}

func azureDisk(accounts ...string) schema {
	return fieldsOf(map[string]schema{
		"storageAccountType": oneOf(accounts...), "diskEncryptionSet": azureEncryption(),
		"securityProfile": fieldsOf(map[string]schema{
			"diskEncryptionSet": azureEncryption(), "securityEncryptionType": oneOf("VMGuestStateOnly", "DiskWithVMGuestState"),
		}),
	})
}

func azureEncryption() schema { return fieldsOf(map[string]schema{"id": {}}) }

func azureSystemDisk() schema {
	return fieldsOf(map[string]schema{
		"osType": {}, "managedDisk": azureDisk(), "diskSizeGB": number(1, 32767).must(),
		"diskSettings": fieldsOf(map[string]schema{"ephemeralStorageLocation": oneOf("Local")}),
		"cachingType":  oneOf("None", "ReadOnly", "ReadWrite"),
	}).with(func(r *report, a at) {
		local := a.in("diskSettings").in("ephemeralStorageLocation").text() == "Local"
		if caching := a.in("cachingType"); local && caching.text() != "ReadOnly" {
			r.fault(caching, "is %q, must be ReadOnly for a disk with ephemeralStorageLocation Local", caching.text())
		}
	})
}

func azureDataDisk() schema {
	suffix := matching(`^[a-zA-Z0-9](?:[\w.-]*[a-zA-Z0-9])?$`,
		"letters, digits, underscores, periods and hyphens that begin and end with a letter or digit")
	return fieldsOf(map[string]schema{
		"nameSuffix": suffix.must().atMost(78), "diskSizeGB": number(4, math.MaxInt32).must(),
		"managedDisk": azureDisk("Standard_LRS", "Premium_LRS", "UltraSSD_LRS"), "lun": number(0, 63),
		"cachingType": oneOf("None", "ReadOnly", "ReadWrite"), "deletionPolicy": oneOf("Delete", "Detach").must(),
	}).with(func(r *report, a at) {
		ultra := a.in("managedDisk").in("storageAccountType").text() == "UltraSSD_LRS"
		if caching := a.in("cachingType"); ultra && caching.given() && caching.text() != "None" {
			r.fault(caching, "is %q, must be None for storageAccountType UltraSSD_LRS", caching.text())
		}
	})
}

func azureDataDisks(r *report, a at) {
	r.unique(a, "nameSuffix")
	units := map[float64]string{}
	for _, d := range a.items() {
		unit := d.in("lun")
		n := unit.v.GetNumberValue() // 0 where it is not given, as in the API
		if other, taken := units[n]; taken {
			r.fault(unit, "is %.0f, as that of %s", n, other)
			continue
		}
		units[n] = d.path
	}
}

// azureImage demands a resource id, or else everything that names an image of the marketplace.
func azureImage(r *report, a at) {
	parts := []string{"publisher", "offer", "sku", "version"}
	if a.in("resourceID").given() {
		for _, part := range append(parts, "type") {
			if a.in(part).given() {
				r.fault(a.in(part), "must not be given with resourceID")
			}
		}
		return
	}
	if !slices.ContainsFunc(append(parts, "type"), func(part string) bool { return a.in(part).given() }) {
		r.warn(a, defaultedByOpenShift)
		return
	}
	for _, part := range parts {
		if !a.in(part).given() {
			r.missing(a.in(part), "must be given without resourceID")
		}
	}
}

func azureSpot(r *report, a at) {
	price := a.in("maxPrice")
	if !price.given() {
		return
	}
	switch k := price.v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return
	case *structpb.Value_StringValue:
		if _, err := placement.ParseQuantity(k.StringValue); err == nil {
			return
		}
	}
	r.fault(price, "must be a quantity such as 0.5")
}

func azureSecurity() schema {
	policy := oneOf("Enabled", "Disabled")
	machine := fieldsOf(map[string]schema{"uefiSettings": fieldsOf(map[string]schema{
		"secureBoot": policy, "virtualizedTrustedPlatformModule": policy,
	})})
	return fieldsOf(map[string]schema{
		"securityType": oneOf("ConfidentialVM", "TrustedLaunch"), "confidentialVM": machine, "trustedLaunch": machine,
	}).with(func(r *report, a at) {
		for typ, field := range map[string]string{"ConfidentialVM": "confidentialVM", "TrustedLaunch": "trustedLaunch"} {
			if a.in("securityType").text() == typ && !a.in(field).given() {
				r.missing(a.in(field), "must be given for securityType %s", typ)
			}
		}
	})
}

func azureBoot() schema {
	const own = "CustomerManaged"
	return fieldsOf(map[string]schema{
		"storageAccountType": oneOf("AzureManaged", own).must(),
		"customerManaged":    fieldsOf(map[string]schema{"storageAccountURI": schema{}.must()}),
	}).with(func(r *report, a at) {
		switch managed := a.in("customerManaged"); {
		case a.in("storageAccountType").text() == own && !managed.given():
			r.missing(managed, "must be given for storageAccountType %s", own)
		case a.in("storageAccountType").text() == "AzureManaged" && managed.given():
			r.fault(managed, "must not be given for storageAccountType AzureManaged")
		}
	})
}

func azureRules(r *report, a at) {
	r.defaulted(a, "vmSize", "image", "userDataSecret", "credentialsSecret")
	for field, other := range map[string]string{"vnet": "subnet", "subnet": "vnet"} {
		if a.in(field).given() && !a.in(other).given() {
			r.missing(a.in(other), "must be given with %s", field)
		}
	}
	azureConfidential(r, a)
}

// azureConfidential checks a confidential machine, whose settings are in three places.
func azureConfidential(r *report, a at) {
	profile, settings := a.in("securityProfile"), a.in("securityProfile").in("settings")
	encryption := a.in("osDisk").in("managedDisk").in("securityProfile").in("securityEncryptionType")
	confidential := settings.in("securityType").text() == "ConfidentialVM"
	uefi := settings.in("confidentialVM").in("uefiSettings")
	switch {
	case encryption.given() && !profile.given():
		r.missing(profile, "must be given with %s", encryption.path)
	case encryption.given() && !confidential:
		r.fault(settings.in("securityType"), "must be ConfidentialVM with %s", encryption.path)
	case confidential && !encryption.given():
		r.missing(encryption, "must be given for securityType ConfidentialVM")
	case confidential && settings.in("confidentialVM").given() &&
		uefi.in("virtualizedTrustedPlatformModule").text() != "Enabled":
		r.fault(uefi.in("virtualizedTrustedPlatformModule"), "must be Enabled for securityType ConfidentialVM")
	}
	if confidential && encryption.text() == "DiskWithVMGuestState" {
		if host := profile.in("encryptionAtHost"); host.v.GetBoolValue() {
			r.fault(host, "must not be true for securityEncryptionType DiskWithVMGuestState")
		}
		if boot := uefi.in("secureBoot"); boot.text() != "Enabled" {
			r.fault(boot, "must be Enabled for securityEncryptionType DiskWithVMGuestState")
		}
	}
}
