package plan

import "time"

// RenewAt returns when to renew certificates that were issued and expire at these times: between 70 and 90 % of their
// lifetime, so that agents which joined together do not come together. chance is from 0 to below 1.
func RenewAt(issued, expires time.Time, chance float64) time.Time {
	lifetime := max(expires.Sub(issued), 0)
	return issued.Add(time.Duration(float64(lifetime) * (0.7 + 0.2*chance)))
}
