//go:build !linux

package unix

import (
	"errors"
	"fmt"
	"io/fs"
)

// Errno is an error of Linux' kernel, which was recorded there.
type Errno uintptr

// Errors of the kernel.
const (
	EPERM        Errno = 1
	ENOENT       Errno = 2
	EACCES       Errno = 13
	EXDEV        Errno = 18
	EINVAL       Errno = 22
	EMSGSIZE     Errno = 90
	ENETUNREACH  Errno = 101
	ECONNREFUSED Errno = 111
	EHOSTUNREACH Errno = 113
	EINPROGRESS  Errno = 115
)

// Error is the text that Go has on Linux.
func (e Errno) Error() string {
	if text := texts[int(e)]; text != "" {
		return text
	}
	return fmt.Sprintf("errno %d", uintptr(e))
}

// Is reports what syscall.Errno does on Linux.
func (e Errno) Is(target error) bool {
	const eexist, enosys, enotempty, eopnotsupp = 17, 38, 39, 95
	switch target {
	case fs.ErrPermission:
		return e == EACCES || e == EPERM
	case fs.ErrExist:
		return e == eexist || e == enotempty
	case fs.ErrNotExist:
		return e == ENOENT
	case errors.ErrUnsupported:
		return e == enosys || e == eopnotsupp
	}
	return false
}
