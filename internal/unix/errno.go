package unix

// texts are those of the kernel's errors (include/uapi/asm-generic/errno.h) as Go has them for Linux: recordings
// keep errors as texts.
var texts = map[int]string{
	1:   "operation not permitted",
	2:   "no such file or directory",
	13:  "permission denied",
	17:  "file exists",
	18:  "invalid cross-device link",
	22:  "invalid argument",
	38:  "function not implemented",
	39:  "directory not empty",
	90:  "message too long",
	95:  "operation not supported",
	101: "network is unreachable",
	111: "connection refused",
	113: "no route to host",
	115: "operation now in progress",
}
