//go:build !linux

package disk

import "os"

const nonBlocking = 0

func isOfProcfs(*os.File) bool { return false }

// renameNew gives a file a second name where that is free; the first one is removed after it.
func renameNew(from, to string) error { return os.Link(from, to) }
