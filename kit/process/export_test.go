package process

// WithoutCgroups has a supervisor that does not run yet use no control groups, as where they are not writable.
func (s *Supervisor) WithoutCgroups() *Supervisor {
	s.noCgroups = true
	return s
}
