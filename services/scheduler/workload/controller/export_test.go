package controller

// Departed returns of how many jobs pods are kept that are gone, or noted that are counted.
func (c *Controllers) Departed() int {
	c.departed.mu.Lock()
	defer c.departed.mu.Unlock()
	return len(c.departed.pods) + len(c.departed.counted)
}
