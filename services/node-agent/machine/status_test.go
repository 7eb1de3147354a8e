package machine

import "testing"

func TestAMachineHasWhatItsProviderSaysAndElseWhatItsHostHas(t *testing.T) {
	b := Bootstrap{Capacity: map[string]any{"cpu": "3", "ephemeral-storage": "10Gi"}}
	s, err := b.Status("n", "127.0.0.1", Boot{ID: "b"}, "")
	if err != nil {
		t.Fatal(err)
	}
	c := s.GetCapacity()
	if c["cpu"].GetStringValue() != "3" || c["ephemeral-storage"].GetStringValue() != "10Gi" ||
		c["pods"].GetStringValue() != "110" || c["memory"].GetStringValue() == "" {
		t.Errorf("capacity %v", c)
	}
	if len(s.GetAllocatable()) != len(c) {
		t.Errorf("allocatable %v", s.GetAllocatable())
	}
}
