// Package version says which version of Windlass this is.
package version

// Number is the version of all programs, which are released together.
const Number = "0.1.0"
