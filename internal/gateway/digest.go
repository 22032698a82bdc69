package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Digest names a plan by what it says: the SHA-256 of its JSON form, in hex. Two
// plans of one digest do the same.
func Digest(p *Plan) string {
	text, err := json.Marshal(p)
	if err != nil {
		panic("gateway plan as JSON: " + err.Error()) // its fields all have a form
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
