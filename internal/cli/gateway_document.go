package cli

import (
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/diff"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
)

// gatewayDocument is what apply, confirm and undo report.
type gatewayDocument struct {
	Schema string `json:"schema"`
	File   string `json:"file,omitempty"`
	// Digest is of the plan that the file becomes, Before what is in force.
	Digest   string            `json:"digest,omitempty"`
	Before   string            `json:"before,omitempty"`
	Findings []gateway.Finding `json:"findings,omitempty"`
	// Difference is between the rules that are in force and the file's.
	Difference diff.Plans `json:"difference,omitzero"`
	Plan       *tune.Plan `json:"plan,omitempty"`
	Already    []string   `json:"already,omitempty"`
	Notes      []string   `json:"notes,omitempty"`
	Confirm    float64    `json:"confirm_seconds,omitempty"`
	Applied    bool       `json:"applied"`
	// Transactions are those that were made, confirmed or undone.
	Transactions []tuneTransaction `json:"transactions"`
	// Stale are connections whose rule went away.
	Stale *gatewayStale `json:"stale,omitempty"`
}

// gatewayStale counts connections that keep a translation that no rule gives; or, where
// Cut, lose it.
type gatewayStale struct {
	Connections int64            `json:"connections"`
	Cut         bool             `json:"cut"`
	ByRule      map[string]int64 `json:"by_rule"`
	// Deleted is 0 without --flush-stale; Offloaded could not be deleted.
	Deleted   int64 `json:"deleted"`
	Offloaded int64 `json:"offloaded"`
}

func (d gatewayDocument) json(env *Env) error {
	d.Schema = gatewayApplySchema
	if d.Transactions == nil {
		d.Transactions = []tuneTransaction{}
	}
	return report.JSON(env.Stdout, d)
}
