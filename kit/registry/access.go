package registry

import (
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Access is the files that say how registries are reached. They are read at each use, so that a change needs no
// restart. The zero Access reaches each registry by https under its own name, without credentials.
type Access struct {
	Settings    []string       // files like node-agent's registries.yaml, of which the first that exists counts
	Credentials []string       // files of the form of docker's config.json
	Keychain    authn.Keychain // for places that Credentials has nothing for; nil: none
	Patience    time.Duration  // how long a registry may take for the next 64 KiB; 0 means a minute
}

// Sources returns where and how to ask for an image, in this order.
func (a Access) Sources(ref name.Reference) ([]Source, error) {
	var file settingsFile
	if err := Read(&file, a.Settings...); err != nil {
		return nil, err
	}
	creds, err := readCredentials(a.Credentials...)
	if err != nil {
		return nil, err
	}
	sources, err := file.Registries.Sources(ref, creds, a.Patience)
	if err != nil {
		return nil, err
	}
	for i, s := range sources {
		if a.Keychain != nil && s.auth == authn.Anonymous {
			if sources[i].auth, err = a.Keychain.Resolve(s.Ref.Context()); err != nil {
				return nil, err
			}
		}
	}
	return sources, nil
}
