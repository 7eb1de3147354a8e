package controller

import "time"

// ShortenLease makes an elector notice within a test that it was cut off.
func ShortenLease(e *Elector, ttl time.Duration) { e.ttl = ttl }

// ErrLeaseLost is why a term ends whose lease was not renewed in time.
var ErrLeaseLost = errLeaseLost
