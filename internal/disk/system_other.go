//go:build !linux

package disk

import "os"

// KernelFS names the file system of a file, where its files are made by the kernel; here there is none.
func KernelFS(*os.File) string { return "" }

// renameNew gives a file a second name where that is free; the first one is removed after it.
func renameNew(from, to string) error { return os.Link(from, to) }
