// Package supervision has the words that supervisors and update-orchestrator have in common about a program that
// changes its executable: reasons of its condition Progressing, and of the reports of hosts. It holds values only, so a
// plan may import it.
package supervision

const (
	// Finalizer keeps a Program until nothing runs from an executable of a release any more.
	Finalizer = "windlass.dev/supervisor"

	Updated        = "Updated"        // it runs what is wanted
	Starting       = "Starting"       // it was started from what is wanted, and may have to go back
	AwaitsPrograms = "AwaitsPrograms" // another program changes: one at a time
	AwaitsTurn     = "AwaitsTurn"     // what is wanted is there, and another host changes, or none may now
	TurnHeld       = "TurnHeld"       // it is this host's turn, but it must not begin now
)
