package kms

import "time"

// Hurry has a plugin polled and given up sooner than a test would wait for. Call it before Run.
func Hurry(p *Plugin, every, limit time.Duration) { p.every, p.limit = every, limit }
