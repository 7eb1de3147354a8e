package authn

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const (
	// reviewEvery is after how long scheduler is asked again whether the pod and the service account of a token exist: how
	// long a token of a deleted pod is still accepted.
	reviewEvery = 10 * time.Second
	// reviewGrace is how long the last answer counts while scheduler does not answer.
	reviewGrace = time.Minute
	// reviewPatience bounds one question.
	reviewPatience = 2 * time.Second
	// maxReviews bounds the answers that are kept. Only tokens with a good signature have any.
	maxReviews = 16384
)

var (
	errNoReview = errors.New("scheduler does not answer, so whether the pod of the token exists is not known")
	errAudience = errors.New("the bearer token is for another audience")
)

// Accounts knows the tokens of service accounts: it verifies them, and asks scheduler whether the service account and
// the pod of each still exist. Concurrent calls are safe.
type Accounts struct {
	verifier  *accounttoken.Verifier
	validity  *identity.Validity
	scheduler schedulingv1.ServiceAccountTokenServiceClient
	log       *slog.Logger
	now       func() time.Time

	asking singleflight.Group
	mu     sync.Mutex
	known  map[accounttoken.Account]review
}

// review is the last answer about an account.
type review struct {
	at      time.Time // with the monotonic clock
	refusal string    // empty: it exists
}

// NewAccounts returns what knows the tokens that scheduler signs. files has the authorities to trust. conn is a
// connection to scheduler.
func NewAccounts(files identity.Files, validity *identity.Validity, conn grpc.ClientConnInterface,
	log *slog.Logger,
) *Accounts {
	return &Accounts{
		verifier: accounttoken.NewVerifier(files), validity: validity, log: log, now: time.Now,
		scheduler: schedulingv1.NewServiceAccountTokenServiceClient(conn), known: map[accounttoken.Account]review{},
	}
}

// owner returns whose token it is, and what says as a status that it no longer is. The error is errNoReview, or says in
// fixed words what is wrong with the token.
func (a *Accounts) owner(ctx context.Context, text string) (t identity.Token, still func() error, err error) {
	token, cert, err := a.verifier.Verify(text, accounttoken.Audience, a.now())
	switch {
	case errors.Is(err, accounttoken.ErrExpired):
		return identity.Token{}, nil, errExpired
	case errors.Is(err, accounttoken.ErrAudience):
		return identity.Token{}, nil, errAudience
	case err != nil:
		a.log.DebugContext(ctx, "token refused", "error", err)
		return identity.Token{}, nil, errNoToken
	}
	signedBy := identity.CertificateCredential(cert)
	if err := a.validity.Check(signedBy); err != nil {
		return identity.Token{}, nil, errNoToken // the certificate of its signer was revoked
	}
	if err := a.review(ctx, token.Account); err != nil {
		return identity.Token{}, nil, err
	}
	t = identity.Token{
		User:   identity.ServiceAccountUser(token.Namespace, token.Name),
		Groups: identity.ServiceAccountGroups(token.Namespace),
		Issued: token.Issued, Expires: token.Expires,
	}
	return t, func() error { return a.still(token.Account, signedBy) }, nil
}

// review returns nil if what a token is bound to exists.
func (a *Accounts) review(ctx context.Context, of accounttoken.Account) error {
	last, age := a.last(of)
	if age >= reviewEvery {
		ctx, cancel := context.WithTimeout(ctx, reviewPatience)
		defer cancel()
		select {
		case <-a.ask(of):
		case <-ctx.Done():
		}
		last, age = a.last(of)
	}
	switch {
	case age >= reviewGrace:
		return errNoReview
	case last.refusal != "":
		return errors.New(last.refusal)
	}
	return nil
}

// still returns a status if what a token is bound to no longer exists, as far as was known at the last look. It does
// not wait: many streams are checked one after the other.
func (a *Accounts) still(of accounttoken.Account, signedBy identity.Credential) error {
	if err := a.validity.Check(signedBy); err != nil {
		return rpcerr.Unauthenticated(errNoToken.Error())
	}
	last, age := a.last(of)
	if age >= reviewEvery {
		a.ask(of)
	}
	switch {
	case age >= reviewGrace:
		return rpcerr.Unavailable(errNoReview.Error())
	case last.refusal != "":
		return rpcerr.Unauthenticated(last.refusal)
	}
	return nil
}

// last returns the last answer about an account and its age, which is more than reviewGrace if there is none.
func (a *Accounts) last(of accounttoken.Account) (review, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.known[of]
	if !ok {
		return r, 2 * reviewGrace
	}
	return r, a.now().Sub(r.at)
}

// ask asks scheduler about an account, once for all who wait.
func (a *Accounts) ask(of accounttoken.Account) <-chan singleflight.Result {
	return a.asking.DoChan(of.UID+"/"+of.PodUID, func() (any, error) {
		if _, age := a.last(of); age < reviewEvery {
			return nil, nil // answered a moment ago
		}
		at := a.now()
		ctx, cancel := context.WithTimeout(context.Background(), reviewPatience)
		defer cancel()
		r, err := a.scheduler.ReviewServiceAccountToken(ctx, &schedulingv1.ReviewServiceAccountTokenRequest{
			Namespace: of.Namespace, Name: of.Name, Uid: of.UID, PodName: of.Pod, PodUid: of.PodUID,
		})
		if err != nil {
			a.log.DebugContext(ctx, "scheduler was asked about a token and did not answer", "error", err)
			return nil, err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.known) >= maxReviews {
			a.forget(at)
		}
		a.known[of] = review{at: at, refusal: r.GetRefusal()}
		return nil, nil
	})
}

// forget drops the answers that no longer count, or all. The lock is held.
func (a *Accounts) forget(now time.Time) {
	for of, r := range a.known {
		if now.Sub(r.at) >= reviewGrace {
			delete(a.known, of)
		}
	}
	if len(a.known) >= maxReviews {
		clear(a.known)
	}
}
