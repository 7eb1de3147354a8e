package share_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/gateway/share"
)

func small() map[share.Class]share.Limits {
	limits := map[share.Class]share.Limits{}
	for _, class := range []share.Class{share.System, share.Agents, share.Users, share.Anonymous} {
		limits[class] = share.Limits{
			Calls: share.Limit{All: 3, Each: 2}, Streams: share.Limit{All: 3, Each: 2},
			Bytes: share.Limit{All: 30, Each: 20},
		}
	}
	return limits
}

func user(name string, groups ...string) identity.Caller {
	return identity.Caller{User: name, Groups: groups}
}

const source = "10.0.0.1:1234"

func TestCallersAreSortedIntoClasses(t *testing.T) {
	for _, c := range []struct {
		caller identity.Caller
		class  share.Class
		name   string
	}{
		{user("alice"), share.Users, "alice"},
		{user("root", identity.GroupMasters), share.System, "root"},
		{user("system:windlass:scheduler", identity.GroupServices), share.System, "system:windlass:scheduler"},
		{user("system:node:a", identity.GroupNodes), share.Agents, "system:node:a"},
		{identity.Caller{}, share.Anonymous, "10.0.0.1"},
	} {
		if class, name := share.Of(c.caller, source); class != c.class || name != c.name {
			t.Errorf("%v is %s in %s, want %s in %s", c.caller, name, class, c.name, c.class)
		}
	}
}

func TestOneClientIsOneHostWhateverItsAddresses(t *testing.T) {
	for source, want := range map[string]string{
		"10.0.0.1:1234":            "10.0.0.1",
		"[::ffff:10.0.0.1]:1234":   "10.0.0.1",
		"[2001:db8:1:2::1]:1":      "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::9]:2": "2001:db8:1:2::/64",
		"[2001:db8:1:3::1]:1":      "2001:db8:1:3::/64",
		"[fe80::1%eth0]:1":         "fe80::/64",
		"[::1]:1":                  "::/64",
		"@":                        "@",
	} {
		if got := share.Host(source); got != want {
			t.Errorf("%s is counted as %s, want %s", source, got, want)
		}
	}
}

func refused(t *testing.T, err error) {
	t.Helper()
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && st.Code() == codes.ResourceExhausted &&
			info.GetRetryDelay().AsDuration() > 0 {
			return
		}
	}
	t.Errorf("%v is no refusal with a time to try again", err)
}

func TestNoCallerStarvesItsClassAndNoClassAnother(t *testing.T) {
	for name, take := range map[string]func(*share.Shares, identity.Caller) (func(), error){
		"streams": func(s *share.Shares, c identity.Caller) (func(), error) { return s.Stream(c, source) },
		"bytes":   func(s *share.Shares, c identity.Caller) (func(), error) { return s.Bytes(c, source, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			s := share.New(small())
			var open []func()
			must := func(c identity.Caller) {
				t.Helper()
				release, err := take(s, c)
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, release)
			}
			must(user("alice"))
			must(user("alice"))
			_, err := take(s, user("alice"))
			refused(t, err)
			must(user("bob"))
			_, err = take(s, user("carol"))
			refused(t, err)
			must(identity.Caller{})
			must(user("system:node:a", identity.GroupNodes))
			for _, release := range open {
				release()
				release() // once more changes nothing
			}
			if calls, streams, bytes := s.Use(share.Users); calls+streams+bytes != 0 {
				t.Errorf("%d calls, %d streams, %d bytes are left", calls, streams, bytes)
			}
		})
	}
}

func TestACallWaitsForRoomOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share.New(small())
		first, err := s.Call(t.Context(), user("alice"), source)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Call(t.Context(), user("alice"), source); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 2)
		go func() { // alice has no room, though the class has
			_, err := s.Call(t.Context(), user("alice"), source)
			got <- err
		}()
		synctest.Wait()
		if _, err := s.Call(t.Context(), user("bob"), source); err != nil {
			t.Errorf("bob waits behind alice: %v", err)
		}
		first()
		if err := <-got; err != nil {
			t.Errorf("the call that waited: %v", err)
		}
		begun := time.Now()
		_, err = s.Call(t.Context(), user("alice"), source)
		refused(t, err)
		if waited := time.Since(begun); waited != 2*time.Second {
			t.Errorf("refused after %v", waited)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("gone")) })
		if _, err := s.Call(ctx, user("alice"), source); status.Code(err) != codes.Canceled {
			t.Errorf("a caller that left: %v", err)
		}
	})
}

func TestTheQueueIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share.New(small())
		for range 2 {
			if _, err := s.Call(t.Context(), user("alice"), source); err != nil {
				t.Fatal(err)
			}
		}
		var at time.Duration
		begun, late := time.Now(), make(chan time.Duration, 200)
		for range 200 {
			go func() {
				_, err := s.Call(t.Context(), user("alice"), source)
				refused(t, err)
				late <- time.Since(begun)
			}()
		}
		now := 0
		for range 200 {
			if at = <-late; at == 0 {
				now++
			}
		}
		if now != 200-128 {
			t.Errorf("%d were refused at once, want 72", now)
		}
	})
}

// Several callers that hold all uploads of a class cannot keep out one that has none.
func TestASlowUploadEndsForACallerThatHasFewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := small()
		limits[share.Users] = share.Limits{Uploads: share.Limit{All: 4, Each: 2}}
		s := share.New(limits)
		hold := func(name string) {
			late, release, err := s.Upload(t.Context(), user(name), source)
			if err == nil {
				select {
				case <-late:
				case <-t.Context().Done():
				}
				release()
			}
		}
		for range 3 {
			go hold("mallory")
			go hold("oscar")
			go hold("trudy") // who waits with the next one, and begins before
		}
		synctest.Wait()
		for range 20 {
			began := time.Now()
			_, release, err := s.Upload(t.Context(), user("bob"), source)
			if err != nil {
				t.Fatalf("after %s: %v", time.Since(began), err)
			}
			release()
		}
	})
}

// What comes in fast is never ended: callers wait for each other.
func TestFastUploadsAreNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := small()
		limits[share.Users] = share.Limits{Uploads: share.Limit{All: 2, Each: 2}}
		s := share.New(limits)
		var ended []<-chan struct{}
		for range 2 {
			late, release, err := s.Upload(t.Context(), user("alice"), source)
			if err != nil {
				t.Fatal(err)
			}
			ended = append(ended, late)
			time.AfterFunc(900*time.Millisecond, release)
		}
		_, release, err := s.Upload(t.Context(), user("bob"), source)
		if err != nil {
			t.Fatal(err)
		}
		release()
		for _, late := range ended {
			select {
			case <-late:
				t.Error("a message of 0.9 s was ended")
			default:
			}
		}
	})
}

// A large request ends after five seconds for a caller that has none, unless it has come.
func TestASlowLargeRequestEndsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := share.New(small())
		take := func(name string) (late <-chan struct{}, came, release func(), err error) {
			return s.Large(t.Context(), user(name), source)
		}
		lates, cames, releases := map[string]<-chan struct{}{}, map[string]func(){}, map[string]func(){}
		for _, name := range []string{"a", "b", "c", "d"} {
			late, came, release, err := take(name)
			if err != nil {
				t.Fatal(err)
			}
			lates[name], cames[name], releases[name] = late, came, release
		}
		for _, name := range []string{"bob", "a"} { // there are four, and a has one
			_, _, _, err := take(name)
			refused(t, err)
		}
		cames["a"]()
		time.Sleep(5 * time.Second)
		go func() {
			<-lates["b"]
			releases["b"]()
		}()
		_, _, release, err := take("bob")
		if err != nil {
			t.Fatalf("nothing has ended for bob: %v", err)
		}
		for _, name := range []string{"a", "c", "d"} {
			select {
			case <-lates[name]:
				t.Errorf("the request of %s was ended, too", name)
			default:
			}
		}
		release()
		release()
		for _, f := range releases {
			f()
		}
		for _, name := range []string{"e", "f", "g", "h"} {
			if _, _, _, err := take(name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		_, _, _, err = take("i")
		refused(t, err)
	})
}
