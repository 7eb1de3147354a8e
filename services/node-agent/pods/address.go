package pods

import (
	"net/netip"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// address chooses the address of a pod, once. It must be saved before it is used. A pod in the network of its host has
// that of the machine.
func (s *Pods) address(p *pod, object *schedulingv1.Pod) error {
	if p.record.Address != "" {
		return nil
	}
	chosen := s.cfg.Address
	if s.cfg.Addresses.Range.IsValid() && !object.GetSpec().GetHostNetwork() {
		ip, err := s.takeAddress(p, object)
		if err != nil {
			return err
		}
		chosen = ip.String()
	}
	s.mu.Lock()
	p.record.Address, p.dirty = chosen, true
	s.mu.Unlock()
	return nil
}

// hasStarted reports whether a container of a pod was started. If the record then has no address, it was written before
// pods had addresses of their own, and its processes may listen on the machine's.
func (p *pod) hasStarted() bool {
	for _, c := range p.record.Containers {
		if c.Starts > 0 {
			return true
		}
	}
	return false
}

// takeAddress takes an address for a pod: the one that the cluster knows, if its record was lost and it is free.
func (s *Pods) takeAddress(p *pod, object *schedulingv1.Pod) (netip.Addr, error) {
	if known, err := netip.ParseAddr(object.GetStatus().GetPodIp()); err == nil {
		if ok, err := s.cfg.Addresses.Claim(known, s.cfg.Node, p.uid); ok || err != nil {
			return known, err
		}
	}
	return s.cfg.Addresses.Take(s.cfg.Node, p.uid)
}

// releaseAddress gives back the address of a pod of which nothing is left.
func (s *Pods) releaseAddress(p *pod) error {
	ip, err := netip.ParseAddr(p.record.Address)
	if err != nil || !s.cfg.Addresses.Range.Contains(ip) {
		return nil
	}
	return s.cfg.Addresses.Release(ip, s.cfg.Node, p.uid)
}

// sweepAddresses gives back the addresses of pods without a record: an earlier agent ended before it wrote that, or
// after it had removed it. It takes those of the others again, whose claims may be lost.
func (s *Pods) sweepAddresses() error {
	if !s.cfg.Addresses.Range.IsValid() {
		return nil
	}
	for uid, p := range s.pods {
		ip, err := netip.ParseAddr(p.record.Address)
		if err != nil || !s.cfg.Addresses.Range.Contains(ip) {
			continue
		}
		if ok, err := s.cfg.Addresses.Claim(ip, s.cfg.Node, uid); err != nil {
			return err
		} else if !ok {
			s.cfg.Log.Warn("address of a pod has another owner, too", "pod", uid, "address", ip)
		}
	}
	return s.cfg.Addresses.Sweep(s.cfg.Node, func(ip, of string) bool {
		p := s.pods[of]
		return p != nil && p.record.Address == ip
	})
}
