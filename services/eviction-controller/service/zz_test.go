package service
import ("testing";"time";"fmt";nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"; metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1";"github.com/windlass-dev/windlass/services/eviction-controller/plan")
func TestZZ(t *testing.T) {
	c := start(t, time.Minute)
	conn := c.admin()
	drains := nodev1.NewDrainServiceClient(conn)
	c.agent("a").beat()
	for i := range 6 {
		if i == 3 { makeControlPlane(t, nodev1.NewNodeServiceClient(conn), "a") }
		b := time.Now()
		n := fmt.Sprintf("d%d", i)
		drains.CreateDrain(t.Context(), &nodev1.CreateDrainRequest{Drain: &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: n}, Spec: &nodev1.DrainSpec{NodeName: "a"}}})
		cr := time.Since(b)
		awaitDrain(t, drains, n, plan.Succeeded)
		fmt.Println("created", cr, "succeeded", time.Since(b))
		drains.DeleteDrain(t.Context(), &nodev1.DeleteDrainRequest{Name: n})
		awaitNode(t, nodev1.NewNodeServiceClient(conn), "a", "free", free)
	}
}
