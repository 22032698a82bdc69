package unix

import "syscall"

// Errno is an error of the kernel.
type Errno = syscall.Errno

// Errors of the kernel.
const (
	EACCES       = syscall.EACCES
	ECONNREFUSED = syscall.ECONNREFUSED
	EHOSTUNREACH = syscall.EHOSTUNREACH
	EINPROGRESS  = syscall.EINPROGRESS
	EINVAL       = syscall.EINVAL
	EMSGSIZE     = syscall.EMSGSIZE
	ENETUNREACH  = syscall.ENETUNREACH
	ENOENT       = syscall.ENOENT
	EPERM        = syscall.EPERM
	EXDEV        = syscall.EXDEV
)
