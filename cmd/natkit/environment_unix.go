//go:build unix

package main

import "os"

// environment is the process's.
func environment(...*os.File) func(string) string { return os.Getenv }
