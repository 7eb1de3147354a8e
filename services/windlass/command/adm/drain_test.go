package adm

import (
	"io"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func TestDrainWithoutGraceRequiresForce(t *testing.T) {
	cmd := NewDrain(&session.Env{})
	cmd.SetArgs([]string{"node-a", "--grace-period=0"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "add --force") {
		t.Errorf("it is not refused: %v", err)
	}
}
