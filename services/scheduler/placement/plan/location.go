package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Content is what was read of a file that configures a plugin.
type Content struct {
	SHA256        string // in hexadecimal digits
	Configuration *structpb.Struct
	Fault         string // why it cannot be read; empty if it was
}

// PluginFiles returns the files that the plugins of a configuration have in force, as they are to be stored with it:
// all processes decide by the same content, and it outlives the file. had is what is stored now, and read returns the
// file at a location now. A content with wrong fields is not taken, and neither is a file that cannot be read: what was
// read of that location before remains in force.
func PluginFiles(plugins *schedulingv1.AdmissionPlugins, had []*schedulingv1.AdmissionPluginFile, now time.Time,
	read func(location string) Content,
) (out []*schedulingv1.AdmissionPluginFile) {
	for _, name := range slices.Sorted(maps.Keys(plugins.GetPluginConfig())) {
		location := plugins.GetPluginConfig()[name].GetLocation()
		if location == "" || plugins.GetPluginConfig()[name].GetConfiguration() != nil || !builtPlugin(name) {
			continue
		}
		file := &schedulingv1.AdmissionPluginFile{Plugin: name, Location: location}
		if before := fileOf(had, name, location); before != nil {
			file = proto.CloneOf(before)
		}
		content := read(location)
		file.Message = content.Fault
		if file.Message == "" {
			file.Message = wrongContent(name, location, content.Configuration)
		}
		if file.Message == "" && file.GetSha256() != content.SHA256 {
			file.Sha256, file.Configuration, file.ReadTime = content.SHA256, content.Configuration, object.Timestamp(now)
		}
		out = append(out, file)
	}
	return out
}

// fileOf returns the file of a plugin at a location; nil if there is none.
func fileOf(files []*schedulingv1.AdmissionPluginFile, plugin, location string) *schedulingv1.AdmissionPluginFile {
	for _, f := range files {
		if f.GetPlugin() == plugin && f.GetLocation() == location {
			return f
		}
	}
	return nil
}

// wrongContent says what is wrong with the content of a file; empty if nothing is.
func wrongContent(plugin, location string, c *structpb.Struct) string {
	var wrong []string
	// The whole content is stored where others may read it: a file that is for something else must not be.
	for field := range c.GetFields() {
		if field != "apiVersion" && field != "kind" && field != pluginFields()[plugin] {
			return fmt.Sprintf("file %q: may have apiVersion, kind and %s, and has another field", location,
				pluginFields()[plugin])
		}
	}
	for _, f := range CheckAdmission("", &schedulingv1.AdmissionPlugins{
		PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{plugin: {Configuration: c}},
	}) {
		f.Path = strings.TrimPrefix(f.Path, "['"+plugin+"'].configuration.")
		wrong = append(wrong, f.String())
	}
	if len(wrong) == 0 {
		return ""
	}
	return "file \"" + location + "\": " + brief(strings.Join(wrong, "; "))
}

// Unread returns the plugins of a configuration whose files cannot be read, below path, if nothing is in force in their
// place.
func Unread(path string, files []*schedulingv1.AdmissionPluginFile) (fields []object.Fault) {
	for _, f := range files {
		if f.GetMessage() != "" && f.GetConfiguration() == nil {
			fields = append(fields, object.Faultf(path+"['"+f.GetPlugin()+"'].location", "%s", f.GetMessage()))
		}
	}
	return fields
}

// withFiles returns plugins with what their files say.
func withFiles(plugins map[string]*schedulingv1.AdmissionPluginConfig,
	files []*schedulingv1.AdmissionPluginFile,
) map[string]*schedulingv1.AdmissionPluginConfig {
	out := make(map[string]*schedulingv1.AdmissionPluginConfig, len(plugins))
	for name, p := range plugins {
		if f := fileOf(files, name, p.GetLocation()); f.GetConfiguration() != nil && p.GetConfiguration() == nil {
			p = &schedulingv1.AdmissionPluginConfig{Configuration: f.GetConfiguration()}
		}
		out[name] = p
	}
	return out
}

// pluginFields returns the plugins that are in force, each with the field of its configuration.
func pluginFields() map[string]string {
	return map[string]string{
		defaultTolerationsPlugin: "disable", nodeConstraintsPlugin: "nodeSelectorLabelBlacklist",
		nodeSelectorPlugin: "podNodeSelectorPluginConfig",
	}
}

func builtPlugin(name string) bool { return pluginFields()[name] != "" }
