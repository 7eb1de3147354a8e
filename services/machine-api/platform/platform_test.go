package platform_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/services/machine-api/platform"
)

const (
	awsSpec = `
apiVersion: machine.openshift.io/v1beta1
kind: AWSMachineProviderConfig
metadata: {creationTimestamp: null}
ami: {id: ami-1}
instanceType: m6i.xlarge
deviceIndex: 0
iamInstanceProfile: {id: profile}
userDataSecret: {name: worker-user-data}
credentialsSecret: {name: aws-cloud-credentials}
placement: {region: us-east-1, availabilityZone: us-east-1a}
securityGroups: [{filters: [{name: "tag:Name", values: [sg]}]}]
subnet: {filters: [{name: "tag:Name", values: [subnet-1a]}]}
blockDevices: [{ebs: {encrypted: true, iops: 0, kmsKey: {arn: ""}, volumeSize: 120, volumeType: gp3}}]
`
	azureSpec = `
apiVersion: machine.openshift.io/v1beta1
kind: AzureMachineProviderSpec
location: eastus
vmSize: Standard_D4s_v3
image: {offer: "", publisher: "", resourceID: /resourceGroups/rg/images/i, sku: "", version: ""}
osDisk: {diskSizeGB: 128, managedDisk: {storageAccountType: Premium_LRS}, osType: Linux, diskSettings: {}}
publicIP: false
vnet: v
subnet: s
zone: "1"
userDataSecret: {name: worker-user-data}
credentialsSecret: {name: azure-cloud-credentials, namespace: openshift-machine-api}
`
	vsphereSpec = `
apiVersion: machine.openshift.io/v1beta1
kind: VSphereMachineProviderSpec
template: rhcos
workspace: {server: vcenter.example.com, datacenter: dc, folder: /dc/vm/f, datastore: ds, resourcePool: /dc/pool}
network: {devices: [{networkName: VM Network}]}
numCPUs: 4
memoryMiB: 16384
diskGiB: 120
userDataSecret: {name: worker-user-data}
credentialsSecret: {name: vsphere-cloud-credentials}
`
)

func parsed(t *testing.T, text string) *structpb.Struct {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSpecsOfTheDocumentsAreAccepted(t *testing.T) {
	for name, spec := range map[string]string{"AWS": awsSpec, "Azure": azureSpec, "vSphere": vsphereSpec} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(platform.Verdict{}, platform.Check(parsed(t, spec))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	other := parsed(t, "apiVersion: example.com/v1\nkind: AWSMachineProviderConfig\nami: 1")
	if v := platform.Check(other); len(v.Refused()) > 0 || platform.Documented(other) {
		t.Errorf("a kind of another group: %+v, want it left alone", v)
	}
}

func TestWrongSpecsAreRefusedWithTheirPath(t *testing.T) {
	for name, tt := range map[string]struct {
		spec, from, to string
		refused        string // paths, sorted
		warned         string // start of a warning
	}{
		"a text where an integer belongs": {awsSpec, "deviceIndex: 0", `deviceIndex: "0"`, "deviceIndex", ""},
		"no image":                        {awsSpec, "ami: {id: ami-1}", "", "ami", ""},
		"an image by ARN":                 {awsSpec, "{id: ami-1}", "{arn: a}", "ami.id", "ami.arn: "},
		"two ways to name a subnet":       {awsSpec, "subnet: {", "subnet: {id: s, ", "subnet", ""},
		"a tenancy that does not exist":   {awsSpec, "region: us", "tenancy: mine, region: us", "placement.tenancy", ""},
		"a list of the wrong form": {
			awsSpec, "securityGroups: [{filters: [{name: \"tag:Name\", values: [sg]}]}]", "securityGroups: {}", "securityGroups",
			"",
		},
		"an item of a list": {awsSpec, "values: [sg]", "values: [7]", "securityGroups[0].filters[0].values[0]", ""},
		"a capacity block without its reservation": {
			awsSpec, "deviceIndex: 0", "marketType: CapacityBlock", "capacityReservationId", "",
		},
		"a field in the wrong case is ignored": {
			awsSpec, "deviceIndex: 0", "Deviceindex: 0", "",
			`Deviceindex: unknown field, which is ignored; the field is "deviceIndex"`,
		},
		"a region that is left out":       {awsSpec, "region: us-east-1, ", "", "", "placement.region: "},
		"a disk without size":             {azureSpec, "diskSizeGB: 128, ", "", "osDisk.diskSizeGB", ""},
		"a disk that is too large":        {azureSpec, "diskSizeGB: 128", "diskSizeGB: 32768", "osDisk.diskSizeGB", ""},
		"a subnet without network":        {azureSpec, "vnet: v", "", "vnet", ""},
		"a zone as a number":              {azureSpec, `zone: "1"`, "zone: 1", "zone", ""},
		"an image by id and by publisher": {azureSpec, `publisher: ""`, "publisher: p", "image.publisher", ""},
		"a disk without its policy of removal": {
			azureSpec, "publicIP: false", "dataDisks: [{nameSuffix: a, diskSizeGB: 4}]", "dataDisks[0].deletionPolicy", "",
		},
		"no template":                    {vsphereSpec, "template: rhcos", "", "template", ""},
		"no device":                      {vsphereSpec, "[{networkName: VM Network}]", "[]", "network.devices", ""},
		"a folder of another datacenter": {vsphereSpec, "/dc/vm/f", "f", "workspace.folder", ""},
		"an unknown mode of cloning":     {vsphereSpec, "numCPUs: 4", "cloneMode: full", "cloneMode", "numCPUs: "},
	} {
		t.Run(name, func(t *testing.T) {
			v := platform.Check(parsed(t, strings.Replace(tt.spec, tt.from, tt.to, 1)))
			var paths []string
			for _, f := range v.Refused() {
				paths = append(paths, f.Path)
			}
			if got := strings.Join(paths, " "); got != tt.refused {
				t.Errorf("refused = %+v, want %s", v.Refused(), tt.refused)
			}
			warned := func(w string) bool { return strings.HasPrefix(w, tt.warned) }
			if tt.warned != "" && !slices.ContainsFunc(v.Warnings, warned) {
				t.Errorf("warnings = %q, want one that begins with %q", v.Warnings, tt.warned)
			}
		})
	}
}
