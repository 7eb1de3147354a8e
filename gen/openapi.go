// Package gen holds what is generated from the protocol buffers, and hands out the descriptions of the REST addresses.
package gen

import "embed"

// OpenAPI is one document for each service, in files named *.openapi.json.
//
//go:embed windlass/*/v1/*.openapi.json
var OpenAPI embed.FS
