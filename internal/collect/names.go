package collect

import (
	"context"

	"github.com/natkit/natkit/internal/snapshot"
)

// namesMember is the member of a bundle that has the names of addresses.
const namesMember = "names.json"

// readNames reads what the host calls addresses, where that is asked for.
func (o *observation) readNames(ctx context.Context) (err error) {
	read := o.src.namer()
	if read == nil {
		return errNone
	}
	o.Names, err = answer(o, question{"names", "names.json"}, func() (*snapshot.Names, error) { return read(ctx), nil })
	return err
}
