//go:build !race

package resource

const checkShared = false
