package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

func contentOf(t *testing.T, sum string, fields map[string]any) Content {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return Content{SHA256: sum, Configuration: s}
}

// The document's PodNodeSelector with a location has the same effect as the one that is given inline.
func TestAFileThatWasReadIsInForce(t *testing.T) {
	inline := load(t, "004-52", &schedulingv1.AdmissionConfig{})
	located := &schedulingv1.AdmissionConfig{
		AdmissionConfig: &schedulingv1.AdmissionPlugins{PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{
			nodeSelectorPlugin: {Location: "selectors.yaml"}, "Unknown": {Location: "other.yaml"},
		}},
		Status: &schedulingv1.AdmissionConfigStatus{},
	}
	content := Content{
		SHA256:        "1",
		Configuration: inline.GetAdmissionConfig().GetPluginConfig()[nodeSelectorPlugin].GetConfiguration(),
	}
	read := func(location string) Content {
		if location != "selectors.yaml" {
			t.Errorf("%s was read", location)
		}
		return content
	}
	at := func(hour int) time.Time { return start.Add(time.Duration(hour) * time.Hour) }
	refresh := func(hour int) *schedulingv1.AdmissionPluginFile {
		t.Helper()
		files := PluginFiles(located.GetAdmissionConfig(), located.GetStatus().GetFiles(), at(hour), read)
		if len(files) != 1 {
			t.Fatalf("files %v", files)
		}
		located.Status.Files = files
		return files[0]
	}
	first := refresh(0)
	if diff := cmp.Diff(&schedulingv1.AdmissionPluginFile{
		Plugin: nodeSelectorPlugin, Location: "selectors.yaml", Sha256: "1", ReadTime: object.Timestamp(at(0)),
		Configuration: content.Configuration,
	}, first, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	inForce := func() {
		t.Helper()
		got := Admit(AdmissionView{Pod: newPod("p"), Admission: located})
		want := Admit(AdmissionView{Pod: newPod("p"), Admission: inline})
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || len(got.Pod.GetSpec().GetNodeSelector()) == 0 {
			t.Errorf("not as inline (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"Unknown"}, AdmissionNotInForce(located.GetAdmissionConfig(),
			located.GetStatus().GetFiles())); diff != "" {
			t.Errorf("not in force (-want +got):\n%s", diff)
		}
	}
	inForce()
	if diff := cmp.Diff(first, refresh(1), protocmp.Transform()); diff != "" {
		t.Errorf("the same content is read again (-want +got):\n%s", diff)
	}

	// What cannot be read, or is wrong, changes nothing but the message.
	before := content
	for says, now := range map[string]Content{
		"it is gone": {Fault: "it is gone"},
		`file "selectors.yaml": podNodeSelectorPluginConfig['ns1']: "region" is not key=value`: contentOf(t, "2",
			map[string]any{"podNodeSelectorPluginConfig": map[string]any{"ns1": "region"}}),
	} {
		content = now
		if f := refresh(2); f.GetMessage() != says || f.GetSha256() != "1" {
			t.Errorf("%v, want the message %q", f, says)
		}
		inForce()
		if fields := Unread("path", located.GetStatus().GetFiles()); len(fields) > 0 {
			t.Errorf("refused: %v", fields)
		}
	}
	content = before
	if f := refresh(3); f.GetMessage() != "" {
		t.Errorf("it can be read again: %v", f)
	}
	content = contentOf(t, "3", map[string]any{
		"podNodeSelectorPluginConfig": map[string]any{"clusterDefaultNodeSelector": "other=x"},
	})
	if f := refresh(4); f.GetSha256() != "3" || !f.GetReadTime().AsTime().Equal(at(4)) {
		t.Errorf("another content: %v", f)
	}
	if a := Admit(AdmissionView{Pod: newPod("p"), Admission: located}); a.Pod.GetSpec().GetNodeSelector()["other"] != "x" {
		t.Errorf("another content: %v", a.Pod.GetSpec().GetNodeSelector())
	}

	// Another location, or a configuration beside it, is another matter.
	located.AdmissionConfig.PluginConfig[nodeSelectorPlugin].Location = "moved.yaml"
	if got := AdmissionNotInForce(located.GetAdmissionConfig(), located.GetStatus().GetFiles()); got[0] !=
		"PodNodeSelector.location" {
		t.Errorf("not in force: %v", got)
	}
}

func TestAFileThatCannotBeReadIsRefusedWhereNothingIsInForce(t *testing.T) {
	plugins := &schedulingv1.AdmissionPlugins{PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{
		nodeSelectorPlugin: {Location: "selectors.yaml"},
	}}
	files := PluginFiles(plugins, nil, start, func(string) Content { return Content{Fault: "no such file"} })
	fields := Unread("admissionConfig.pluginConfig", files)
	if len(fields) != 1 || fields[0].Path != "admissionConfig.pluginConfig['PodNodeSelector'].location" ||
		!strings.Contains(fields[0].Description, "no such file") {
		t.Errorf("faults %v", fields)
	}
	plugins.PluginConfig[nodeSelectorPlugin].Configuration = &structpb.Struct{}
	if files := PluginFiles(plugins, files, start, nil); len(files) > 0 {
		t.Errorf("a configuration is given, and the file is used: %v", files)
	}
}

// What is read is stored with the configuration, and all who may read that see it.
func TestAFileForSomethingElseIsNotStored(t *testing.T) {
	for _, plugin := range []string{defaultTolerationsPlugin, nodeConstraintsPlugin, nodeSelectorPlugin} {
		for says, fields := range map[string]map[string]any{
			"":                  {"apiVersion": "v1", "kind": plugin},
			"has another field": {"apiVersion": "v1", "token": "secret"},
		} {
			files := PluginFiles(&schedulingv1.AdmissionPlugins{
				PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{plugin: {Location: "x.yaml"}},
			}, nil, start, func(string) Content { return contentOf(t, "1", fields) })
			f := files[0]
			if !strings.Contains(f.GetMessage(), says) || (says == "") != (f.GetMessage() == "") ||
				(says == "") != (f.GetConfiguration() != nil) || strings.Contains(f.String(), "secret") {
				t.Errorf("%s, %v: %v", plugin, fields, f)
			}
		}
	}
}

func TestTheMessageAboutAFileIsShort(t *testing.T) {
	wrong := map[string]any{}
	for i := range 10_000 {
		wrong[fmt.Sprint(i)] = "x"
	}
	files := PluginFiles(&schedulingv1.AdmissionPlugins{
		PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{nodeSelectorPlugin: {Location: "x.yaml"}},
	}, nil, start, func(string) Content {
		return contentOf(t, "1", map[string]any{"podNodeSelectorPluginConfig": wrong})
	})
	if n := len(files[0].GetMessage()); n == 0 || n > 2*mostText {
		t.Errorf("the message has %d bytes", n)
	}
}
