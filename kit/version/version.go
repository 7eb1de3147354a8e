// Package version says which version of Windlass this is.
package version

// Number is the version of all programs, which are released together. A build may set another one (-ldflags -X).
var Number = "0.1.0"
