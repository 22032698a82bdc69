//go:build readonly

package permit

const built = true
