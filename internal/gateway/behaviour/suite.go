package behaviour

import "slices"

// All is every case.
func All() []Case {
	return slices.Concat(
		rfc4787(),
	)
}
