//go:build race

package resource

// checkShared has tests with -race panic when they find a part of a cache modified.
const checkShared = true
