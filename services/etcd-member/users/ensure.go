package users

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Auth is the part of an etcd client that Ensure needs.
type Auth interface {
	AuthStatus(ctx context.Context) (*clientv3.AuthStatusResponse, error)
	AuthEnable(ctx context.Context) (*clientv3.AuthEnableResponse, error)
	UserList(ctx context.Context) (*clientv3.AuthUserListResponse, error)
	UserGet(ctx context.Context, name string) (*clientv3.AuthUserGetResponse, error)
	UserAddWithOptions(ctx context.Context, name, password string, o *clientv3.UserAddOptions) (
		*clientv3.AuthUserAddResponse, error)
	UserGrantRole(ctx context.Context, user, role string) (*clientv3.AuthUserGrantRoleResponse, error)
	RoleList(ctx context.Context) (*clientv3.AuthRoleListResponse, error)
	RoleGet(ctx context.Context, role string) (*clientv3.AuthRoleGetResponse, error)
	RoleAdd(ctx context.Context, name string) (*clientv3.AuthRoleAddResponse, error)
	RoleGrantPermission(ctx context.Context, name, key, rangeEnd string, p clientv3.PermissionType) (
		*clientv3.AuthRoleGrantPermissionResponse, error)
}

// Ensure sets up root and the users of list, each with its role, and turns authentication on as the last step.
// It looks first and changes only what is missing or different, so it may be stopped at any point, run again,
// and run by several at once. Once authentication is on, ctx or the client must act as root.
func Ensure(ctx context.Context, auth Auth, list []User) error {
	if err := check(list); err != nil {
		return err
	}
	s, err := look(ctx, auth)
	if err != nil {
		return err
	}
	if err := s.user(ctx, User{Name: Root}); err != nil {
		return err
	}
	for _, u := range list {
		if err := s.user(ctx, u); err != nil {
			return err
		}
	}
	if s.enabled {
		return nil
	}
	if _, err := auth.AuthEnable(ctx); err != nil {
		return fmt.Errorf("turn authentication on: %w", err)
	}
	return nil
}

// setup is the state when Ensure began.
type setup struct {
	auth         Auth
	enabled      bool
	users, roles []string
}

func look(ctx context.Context, auth Auth) (setup, error) {
	status, err := auth.AuthStatus(ctx)
	if err != nil {
		return setup{}, fmt.Errorf("authentication status: %w", err)
	}
	users, err := auth.UserList(ctx)
	if err != nil {
		return setup{}, fmt.Errorf("list users: %w", err)
	}
	roles, err := auth.RoleList(ctx)
	if err != nil {
		return setup{}, fmt.Errorf("list roles: %w", err)
	}
	return setup{auth: auth, enabled: status.Enabled, users: users.Users, roles: roles.Roles}, nil
}

// user completes the role before it is granted: a user has either no permission or all of them.
func (s setup) user(ctx context.Context, u User) error {
	if err := s.role(ctx, u); err != nil {
		return fmt.Errorf("role %q: %w", u.Name, err)
	}
	if !slices.Contains(s.users, u.Name) {
		_, err := s.auth.UserAddWithOptions(ctx, u.Name, "", &clientv3.UserAddOptions{NoPassword: true})
		if err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
			return fmt.Errorf("user %q: add: %w", u.Name, err)
		}
	} else {
		got, err := s.auth.UserGet(ctx, u.Name)
		if err != nil {
			return fmt.Errorf("user %q: %w", u.Name, err)
		}
		if slices.Contains(got.Roles, u.Name) {
			return nil
		}
	}
	if _, err := s.auth.UserGrantRole(ctx, u.Name, u.Name); err != nil {
		return fmt.Errorf("user %q: grant its role: %w", u.Name, err)
	}
	return nil
}

func (s setup) role(ctx context.Context, u User) error {
	var have []*authpb.Permission
	if !slices.Contains(s.roles, u.Name) {
		_, err := s.auth.RoleAdd(ctx, u.Name)
		if err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
			return fmt.Errorf("add: %w", err)
		}
	} else if len(u.Prefixes) > 0 {
		got, err := s.auth.RoleGet(ctx, u.Name)
		if err != nil {
			return err
		}
		have = got.Perm
	}
	for _, g := range u.Prefixes {
		if err := s.grant(ctx, u.Name, g, have); err != nil {
			return err
		}
	}
	return nil
}

func (s setup) grant(ctx context.Context, role string, g Grant, have []*authpb.Permission) error {
	key, end, kind := g.keys()
	same := func(p *authpb.Permission) bool {
		return string(p.Key) == key && string(p.RangeEnd) == end && p.PermType == authpb.Permission_Type(kind)
	}
	if slices.ContainsFunc(have, same) {
		return nil
	}
	// The same keys with another permission are replaced.
	if _, err := s.auth.RoleGrantPermission(ctx, role, key, end, kind); err != nil {
		return fmt.Errorf("permission on %q: %w", key, err)
	}
	return nil
}

func (g Grant) keys() (key, end string, kind clientv3.PermissionType) {
	kind = clientv3.PermissionType(authpb.Permission_READ)
	if g.Permission == ReadWrite {
		kind = clientv3.PermissionType(authpb.Permission_READWRITE)
	}
	if g.Key != "" {
		return g.Key, "", kind
	}
	return g.Prefix, clientv3.GetPrefixRangeEnd(g.Prefix), kind
}
