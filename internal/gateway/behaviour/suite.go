package behaviour

import "slices"

// All is every case.
func All() []Case {
	return slices.Concat(
		rfc4787(),
		rfc6888(),
		kinds(),
		pools(),
		applying(),
		stateless(),
		fixed(),
		fixedOfHost(),
		rfc6296(),
		rfc5382(),
		rfc5508(),
		fragmented(),
		rfc7857(),
		packetHeaders(),
	)
}
