package platform

import "math"

// aws is AWSMachineProviderConfig.
func aws() schema {
	reference := awsReference().with(func(r *report, a at) { r.exclusive(a, "id", "arn", "filters") })
	return fieldsOf(embedded(map[string]schema{
		"ami": awsReference().must().with(func(r *report, a at) {
			for _, other := range []string{"arn", "filters"} {
				if a.in(other).given() {
					r.warn(a.in(other), "is ignored: an image is referred to by id only")
				}
			}
			if !a.in("id").given() {
				r.missing(a.in("id"), "must be given")
			}
		}),
		"instanceType": {}, "keyName": {}, "placementGroupName": {},
		"cpuOptions": fieldsOf(map[string]schema{
			"confidentialCompute": oneOf("Disabled", "AMDEncryptedVirtualizationNestedPaging"),
		}).with(func(r *report, a at) {
			if len(a.v.GetStructValue().GetFields()) == 0 {
				r.fault(a, "must have at least one field if it is given")
			}
		}),
		"tags": listOf(fieldsOf(map[string]schema{
			"name": schema{}.must().atMost(128), "value": {},
		})).with(awsTags),
		"iamInstanceProfile": reference, "subnet": reference,
		"userDataSecret": secret(), "credentialsSecret": secret(),
		"deviceIndex": int64s(), "publicIp": yesNo(),
		"networkInterfaceType": oneOf("ENA", "EFA"),
		"securityGroups":       listOf(reference),
		"placement": fieldsOf(map[string]schema{
			"region": {}, "availabilityZone": {}, "tenancy": oneOf("default", "dedicated", "host"), "host": awsHost(),
		}).with(awsPlacement),
		"loadBalancers": listOf(fieldsOf(map[string]schema{
			"name": schema{}.must(), "type": oneOf("classic", "network").must(),
		})),
		"blockDevices":            listOf(awsDevice(reference)).with(awsRootDevice),
		"spotMarketOptions":       fieldsOf(map[string]schema{"maxPrice": {}}),
		"metadataServiceOptions":  fieldsOf(map[string]schema{"authentication": oneOf("Required", "Optional")}),
		"placementGroupPartition": number(1, 7),
		"capacityReservationId":   matching(`^cr-`, "the id of a capacity reservation, which begins with cr-"),
		"marketType":              oneOf("OnDemand", "Spot", "CapacityBlock"),
	})).with(awsRules)
}

// awsReference is a resource of AWS by id, by ARN or by filters.
func awsReference() schema {
	return fieldsOf(map[string]schema{
		"id": {}, "arn": {},
		"filters": listOf(fieldsOf(map[string]schema{"name": schema{}.must(), "values": listOf(schema{})})),
	})
}

func awsHost() schema {
	return fieldsOf(map[string]schema{
		"affinity":      oneOf("DedicatedHost", "AnyAvailable").must(),
		"dedicatedHost": {form: anything}, // another shape in each version of the API
	})
}

func awsDevice(reference schema) schema {
	return fieldsOf(map[string]schema{
		"deviceName": {}, "noDevice": {}, "virtualName": {},
		"ebs": fieldsOf(map[string]schema{
			"deleteOnTermination": yesNo(), "encrypted": yesNo(), "kmsKey": reference,
			"iops": number(0, math.MaxInt32), "throughputMib": number(125, 2000),
			"volumeSize": number(1, 65536), "volumeType": {},
		}),
	})
}

func awsTags(r *report, a at) {
	seen := map[string]bool{}
	for _, tag := range a.items() {
		name := tag.in("name").text()
		if seen[name] {
			r.warn(tag, "the tag %q was given before; only the first counts", name)
		}
		seen[name] = true
	}
}

func awsPlacement(r *report, a at) {
	if !a.in("region").given() {
		r.defaulted(a, "region")
	}
	if a.in("host").given() && a.in("tenancy").text() != "host" {
		r.fault(a.in("host"), "must not be given unless tenancy is host")
	}
}

// awsRootDevice refuses a second device without a name: the first is the root device.
func awsRootDevice(r *report, a at) {
	unnamed := 0
	for _, d := range a.items() {
		if d.in("deviceName").given() {
			continue
		}
		if unnamed++; unnamed > 1 {
			r.fault(d.in("deviceName"), "must be given: only the root device has no name")
		}
	}
}

func awsRules(r *report, a at) {
	r.defaulted(a, "instanceType", "userDataSecret", "credentialsSecret")
	if !a.in("placement").given() {
		r.defaulted(a, "placement")
	}
	subnet := a.in("subnet")
	if !subnet.in("id").given() && !subnet.in("arn").given() && !subnet.in("filters").given() {
		r.warn(subnet, "is not given; instances may be created in an unexpected subnet and may not join the cluster")
	}
	if !a.in("iamInstanceProfile").given() {
		r.warn(a.in("iamInstanceProfile"), "is not given; nodes may be unable to join the cluster")
	}
	if a.in("placementGroupPartition").given() && !a.in("placementGroupName").given() {
		r.missing(a.in("placementGroupName"), "must be given with placementGroupPartition")
	}
	market := a.in("marketType")
	if market.text() == "CapacityBlock" && !a.in("capacityReservationId").given() {
		r.missing(a.in("capacityReservationId"), "must be given for marketType CapacityBlock")
	}
	if a.in("spotMarketOptions").given() && market.given() && market.text() != "Spot" {
		r.fault(market, "is %q, must be Spot or absent with spotMarketOptions", market.text())
	}
}
