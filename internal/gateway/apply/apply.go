// Package apply makes a gateway plan hold on a host: as changes that are journaled,
// confirmed and undone like all others, and, for the service, again whenever the
// configuration or an address changes.
package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/natkit/natkit/internal/units"
)

// Wish is the desired state of a host.
type Wish struct {
	// Name and Text are the configuration's.
	Name string
	Text []byte
	// Files reads what it names; nil stands for the host's.
	Files gateway.Files
	// Persist keeps the configuration where the service finds it at boot.
	Persist bool
	// Overwrite replaces rules that were changed by hand with the plan.
	Overwrite bool
	// Force goes on where Check refuses.
	Force bool
	// PID is the process whose session must not be cut; 0 for none.
	PID int
	// Origin is written into the journal.
	Origin string
}

func (w Wish) files() gateway.Files {
	if w.Files == nil {
		return disk.Files{}
	}
	return w.Files
}

// Ready is a wish that was checked and compiled, and what has to be changed for it.
type Ready struct {
	Prepared
	Findings []gateway.Finding
	Gateway  *gateway.Plan
	Facts    gateway.Facts
	Digest   string
	// Carriers are the engines of its rules; nil where there is one.
	Carriers []gateway.Carrier
	// Before is what is in force now, InForce its plan; nil as for Host.InForce.
	Before  string
	InForce *gateway.Plan
	// Changed lists what was changed in the rules since natkit wrote them.
	Changed []string
	file    *gateway.File
	now     Present
	// obstacles are why it cannot be applied, besides findings.
	obstacles []error
	// state is what was in force when the check began, unread why it could not be read; plans are those that were read,
	// and Gateway.
	state  *gateway.State
	unread error
	plans  kept
	// text is what the service is to find at boot; nil where nothing is persisted.
	text []byte
	host Host
}

// Refused: Check found what must not be applied.
type Refused struct{ Findings []gateway.Finding }

func (r Refused) Error() string {
	f := r.Findings[0]
	text := f.Placed()
	if f.Advice != "" {
		text += "; " + f.Advice
	}
	if more := len(r.Findings) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// Obstacle is why a file is not applied though Check refuses nothing: what is in force, or no
// engine that carries it out.
type Obstacle struct{ error }

func (o Obstacle) Unwrap() error { return o.error }

// Prepare checks and compiles a wish against the host as it is. It changes nothing.
func (h Host) Prepare(ctx context.Context, w Wish) (*Ready, error) {
	r, err := h.check(ctx, w, h.Engines.CheckUntried)
	if err != nil {
		return nil, err
	}
	if refused := refusals(r.Findings); len(refused) > 0 && !w.Force {
		return r, Refused{refused}
	}
	if err := r.compile(ctx, w); err != nil {
		return r, err
	}
	if len(r.obstacles) > 0 {
		return r, Obstacle{r.obstacles[0]}
	}
	if err := h.persist(r, w); err != nil || len(r.Plan.Changes) > 0 {
		return r, err
	}
	return r, r.put() // it is in force
}

// check reads a wish's file and what it depends on of the host, and checks it.
func (h Host) check(ctx context.Context, w Wish, check func(*gateway.File, gateway.Facts, func(*gateway.Plan)) []gateway.Finding) (*Ready, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	r := &Ready{host: h, plans: h.keeps()}
	read := make(chan struct{})
	go func() { // meanwhile: of ten thousand rules in force it takes as long as a check of ten thousand others
		defer close(read)
		r.state, r.unread = h.Engines.Read(h.Netns, r.plans, true)
	}()
	err := r.checkFile(ctx, w, check)
	<-read
	return r, err
}

// checkFile is check without what is in force.
func (r *Ready) checkFile(ctx context.Context, w Wish, check func(*gateway.File, gateway.Facts, func(*gateway.Plan)) []gateway.Finding) (err error) {
	if r.file, err = gateway.UnlessEnded(ctx, func() (*gateway.File, error) { return gateway.ParseWith(w.files(), w.Name, w.Text) }); err != nil {
		return err
	}
	if r.Facts, err = r.host.facts(ctx, r.file, w.PID); err != nil {
		return err
	}
	r.Findings, err = gateway.UnlessEnded(ctx, func() ([]gateway.Finding, error) {
		return check(r.file, r.Facts, func(p *gateway.Plan) { r.Gateway = p }), nil
	})
	return err
}

// compile makes the plan, unless the check has made it, and the changes to what is in force.
func (r *Ready) compile(ctx context.Context, w Wish) (err error) {
	if r.Gateway == nil {
		r.Gateway, err = gateway.UnlessEnded(ctx, func() (*gateway.Plan, error) { return gateway.Compile(&r.file.Config, r.Facts) })
		if err != nil {
			return err
		}
	}
	assigned, notes, err := r.host.Engines.Assign(r.Gateway, r.Facts)
	if err != nil {
		r.obstacles = append(r.obstacles, err)
	} else {
		r.Gateway, r.Carriers = assigned, assigned.Carriers(notes)
	}
	if r.unread != nil {
		return r.unread
	}
	state := r.state
	if r.now, err = r.host.present(ctx, r.Gateway, &r.Facts, state); err != nil {
		return err
	}
	r.Digest, r.Before, r.Changed = gateway.Digest(r.Gateway), Value(state), state.Changes
	if r.InForce, err = r.host.replaceable(state, r.plans, w.Overwrite); err != nil {
		r.obstacles = append(r.obstacles, err)
	}
	r.plans.plans[r.Digest] = r.Gateway
	if r.Before == tune.GatewayForeign {
		return nil // there are no changes for that
	}
	if w.Origin != OriginService && r.Before == r.Digest { // a service does so itself
		if r.now.Steer, err = r.steers(); err != nil {
			return err
		}
	}
	r.Prepared, err = Plan(r.Gateway, r.Digest, r.now, w.Origin)
	return err
}

func refusals(all []gateway.Finding) []gateway.Finding {
	return slices.DeleteFunc(slices.Clone(all), func(f gateway.Finding) bool { return f.Severity != gateway.Refuse })
}

// replaceable returns the plan in force; nil as for Host.InForce. It refuses to overwrite
// what could not be put back, unless overwrite is set.
func (h Host) replaceable(state *gateway.State, plans kept, overwrite bool) (*gateway.Plan, error) {
	value := Value(state)
	p, lost := plans.of(value)
	_, changed := tune.GatewayDigest(value)
	switch {
	case value == tune.GatewayForeign:
		return nil, foreign(h.Netns, state)
	case overwrite:
		return p, nil
	case changed:
		return p, fmt.Errorf("%w: %s; --overwrite takes that back", ErrChanged, strings.Join(state.Changes, "; "))
	case lost != nil:
		return nil, fmt.Errorf("%w; --overwrite replaces it all the same", lost)
	}
	return p, nil
}

// of is the plan of a value, nil where it has none; or why it could not be put back.
func (k kept) of(value string) (*gateway.Plan, error) {
	digest, _ := tune.GatewayDigest(value)
	if digest == "" {
		return nil, nil
	}
	p, err := k.Get(digest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the plan that is in force (%s) is not in %s, so that it could not be put back", digest[:12], k.Dir())
	case err != nil:
		return nil, fmt.Errorf("the plan that is in force could not be put back: %w", err)
	}
	return p, nil
}

// persist adds the files that make a plan hold after a boot.
func (h Host) persist(r *Ready, w Wish) error {
	if !w.Persist {
		return nil
	}
	if !h.initial() {
		return errors.New("persist: this network namespace is not the host's own, which is the one that the files under /etc are for; apply it without --persist")
	}
	there := path.Join("/", path.Dir(tune.ConfPath(tune.GatewayFile)))
	if beside := r.file.Beside(); len(beside) > 0 && filepath.Dir(w.Name) != there {
		return fmt.Errorf("persist: the file is kept in %s, where it would not find %s: put both there, or write the whole path", there, beside[0])
	}
	r.text = w.Text
	files := append(tune.Persistent(r.lasting), tune.Change{Kind: tune.GatewayFile, Target: tune.GatewayFileTarget, After: engine.TextDigest(w.Text),
		Why: "'natkit gateway run' reads it at boot"})
	if err := apply.ReadBefore(files, h.options(h.keeps())); err != nil {
		return err
	}
	if len(r.Plan.Changes) == 0 && !slices.ContainsFunc(files, func(c tune.Change) bool { return !tune.SameValue(c.Before, c.After) }) {
		return nil
	}
	r.Plan.Changes = append(r.Plan.Changes, files...)
	return nil
}

// initial reports whether the namespace is the host's own; asked from inside, where
// process 1 may not be inspected.
func (h Host) initial() (yes bool) {
	err := h.Netns.Do(func() error {
		inode, err := h.Inode()
		yes = err == nil && apply.IsInitialNetns(inode, h.proc())
		return err
	})
	return yes && err == nil
}

// put stores what the changes need, and what their undo does.
func (r *Ready) put() error {
	if _, err := r.host.store().Put(r.Gateway); err != nil || r.text == nil {
		return err
	}
	if _, err := r.host.store().PutText(r.text); err != nil {
		return err
	}
	i := slices.IndexFunc(r.Plan.Changes, func(c tune.Change) bool { return c.Kind == tune.GatewayFile })
	if i < 0 {
		return nil
	}
	return r.host.keepFile(r.Plan.Changes[i].Before)
}

// keepFile stores the configuration that is there, for the undo.
func (h Host) keepFile(digest string) error {
	if digest == "" {
		return nil
	}
	text, err := apply.FileOf(cmp.Or(h.Apply.Root, "/"), tune.GatewayFile).Text()
	if err != nil {
		return err
	}
	got, err := h.store().PutText([]byte(text))
	if err == nil && got != digest {
		err = errors.New("keep the former gateway configuration: it changes meanwhile; try again")
	}
	return err
}

// Apply carries out what was prepared, in the namespace, deletes the connections that its
// first rules of NAT came too late for, and then deletes plans that are no longer referenced.
// confirm is as in apply.Options. With an error and what was applied, it is in force.
func (r *Ready) Apply(ctx context.Context, confirm time.Duration) (applied *apply.Applied, err error) {
	if confirm > 0 && r.InForce == nil {
		if _, err := r.plans.of(r.Before); err != nil {
			return nil, fmt.Errorf("%w: nothing would be undone without a confirmation; apply it without --confirm, or undo it first", err)
		}
	}
	if err := r.put(); err != nil {
		return nil, err
	}
	opt, rezoned := r.host.options(r.plans), &moved{}
	engines, done := r.host.Engines.Ahead(r.host.Netns, r.Gateway, r.Digest)
	defer done()
	opt.Appliers[tune.Gateway] = gateways{engines, r.plans, rezoned, r.steerOf}
	opt.Confirm, opt.Persist, opt.Lifeline = confirm, false, false
	// A service that is killed is started again, and cleans; it may start no others.
	opt.Guarded = r.Plan.Origin != OriginService
	if ctx.Err() == nil && !opt.Guarded {
		// A stop of the service leaves rules in force, the old ones or the new ones: what
		// has begun ends, in less than a manager waits.
		ctx = context.WithoutCancel(ctx)
	}
	err = r.host.Netns.Do(func() error {
		applied, err = apply.Apply(ctx, r.Plan, opt)
		return err
	})
	if err != nil {
		return nil, r.located(r.first(err))
	}
	if err := r.steer(); err != nil {
		return applied, fmt.Errorf("in force as %s: %w", applied.ID(), err)
	}
	var notes []string
	if r.begins() {
		notes = append(notes, r.translate(ctx))
	}
	notes = append(notes, r.outrun(ctx))
	notes = slices.DeleteFunc(append(notes, rezoned.note()), func(note string) bool { return note == "" })
	if note := strings.Join(notes, "; "); note != "" {
		if err = applied.Note(tune.Gateway, note); err != nil {
			err = fmt.Errorf("in force as %s, and %s; write that into the journal: %w", applied.ID(), note, err)
		}
	}
	r.host.forget()
	return applied, err
}

// steer keeps new connections from uplinks that are down: the rules are written for all of them.
func (r *Ready) steer() error {
	return r.host.Engines.Steer(r.host.Netns, r.Gateway, func(u *gateway.Uplink, v6 bool) bool { return !r.Facts.UplinkDown(u, r.Gateway, v6) })
}

// steerOf is steer where the plan of a digest is the one that was prepared: an apply that fails puts the one before back.
func (r *Ready) steerOf(digest string) error {
	if digest != r.Digest {
		return nil
	}
	return r.steer()
}

// steers says by which uplinks new connections leave from now on, where rules that stay as they are divide them in
// another way: some were down until now, or when these rules were last steered. Empty where they do not.
func (r *Ready) steers() (string, error) {
	s, err := r.host.Steering(r.Gateway)
	if s == nil || err != nil {
		return "", err
	}
	now := r.Facts
	now.Steering = s
	names, differs := map[string]bool{}, false
	for i, served := range []bool{r.Gateway.IPv4, r.Gateway.IPv6} {
		if !served {
			continue
		}
		slots := r.Facts.Slots(r.Gateway, i == 1)
		differs = differs || !slices.Equal(slots, now.Slots(r.Gateway, i == 1))
		for _, n := range slots {
			names[r.Gateway.Uplinks[n].Interface] = true
		}
	}
	if !differs {
		return "", nil
	}
	return "new connections leave by " + strings.Join(slices.Sorted(maps.Keys(names)), ", "), nil
}

// begins reports whether rules of NAT come where the gateway had none: connections that
// begin while the kernel takes the first ones in, and those that there were before, pass
// them without being asked.
func (r *Ready) begins() bool {
	return translates(r.Gateway) && (r.Before == tune.GatewayNone || r.InForce != nil && !translates(r.InForce))
}

func translates(p *gateway.Plan) bool { return len(p.Sources)+len(p.Destinations) > 0 }

// translate makes the plan true for connections that pass it, and says how many there were.
func (r *Ready) translate(ctx context.Context) string {
	passed, err := r.host.Translate(ctx, r.Gateway, &r.Facts)
	switch {
	case err != nil:
		return fmt.Sprintf("connections that pass untranslated could not be searched for: %v", err)
	case len(passed.Keys) == 0:
		return ""
	}
	return fmt.Sprintf("deleted %s that passed untranslated: %s; their next packets are translated",
		units.Plural(int64(len(passed.Keys)), "connection", "connections"), passed.Words())
}

// outrun has the tracker forget connections that programs have taken from it, and says how many there were.
func (r *Ready) outrun(ctx context.Context) string {
	carried := r.Gateway.Assigned[gateway.EngineEBPF]
	if len(carried) == 0 || r.InForce != nil && slices.Equal(r.InForce.Assigned[gateway.EngineEBPF], carried) {
		return ""
	}
	passed, err := r.host.Outrun(ctx, r.Gateway)
	if err == nil {
		_, err = r.host.Flush(ctx, passed)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("the tracker's entries of connections that the programs have now could not be deleted: %v", err)
	case len(passed.Keys) == 0:
		return ""
	}
	return fmt.Sprintf("deleted the tracker's entries of %s that the programs have now", units.Plural(int64(len(passed.Keys)), "connection", "connections"))
}

// first says that another natkit was first, where the host is not what the plan was made for
// because of that.
func (r *Ready) first(err error) error {
	if !errors.Is(err, apply.ErrChangedSince) {
		return err
	}
	state, readErr := r.host.State()
	if readErr != nil || !tune.IsDigest(state.Digest) || Value(state) == r.Before {
		return err
	}
	return fmt.Errorf("%w: it put plan %.12s in force; nothing was changed; apply the file again if it is to take its place", ErrAnotherFirst, state.Digest)
}

// ErrAnotherFirst: while a file was prepared, another natkit applied one.
var ErrAnotherFirst = errors.New("another natkit was first")

// located adds the line of the rule that an error is about.
func (r *Ready) located(err error) error {
	var about aboutRule
	if !errors.As(err, &about) {
		return err
	}
	if rule, ok := about.Rule(); ok && r.file.Line(rule) != "" {
		return fmt.Errorf("%s: %w", r.file.Line(rule), err)
	}
	return err
}

// aboutRule are errors of engines that concern a rule of the file; false where they
// concern several, or all of it.
type aboutRule interface {
	error
	Rule() (gateway.Ref, bool)
}

// Undo takes a transaction back, in the namespace.
func (h Host) Undo(id string) (tx *journal.Transaction, err error) {
	err = h.Netns.Do(func() error {
		if tx, err = h.undo(id); err != nil {
			return err
		}
		return h.reroute(tx)
	})
	return tx, err
}

// undo takes back what a transaction did and no later one does, in the thread's namespace.
func (h Host) undo(id string) (*journal.Transaction, error) {
	plans, rezoned := h.keeps(), &moved{}
	opt := h.options(plans)
	opt.Appliers[tune.Gateway] = gateways{engines: h.Engines, kept: plans, moved: rezoned}
	tx, err := apply.Undo(id, opt)
	if tx == nil || err != nil || rezoned.note() == "" {
		return tx, err
	}
	for i := range tx.Changes {
		if c := &tx.Changes[i]; c.Kind == tune.Gateway && c.State == journal.Undone {
			c.Note = strings.Join(slices.DeleteFunc([]string{c.Note, rezoned.note()}, func(note string) bool { return note == "" }), "; ")
			break
		}
	}
	return tx, nil
}

// reroute puts rules and routes back that the gateway in force needs: the transaction that was undone had put them back
// itself, after one before it had made them, which is the one that takes them back.
func (h Host) reroute(undone *journal.Transaction) error {
	here, err := h.id()
	if err != nil {
		return err
	}
	open, err := h.open(here)
	made := map[string]string{}
	for _, tx := range open {
		for _, c := range tx.Changes {
			if c.Open() && c.Kind == tune.Routing {
				made[c.Target] = c.After
			}
		}
	}
	for _, c := range undone.Changes {
		if c.Kind != tune.Routing || c.Before != "" || made[c.Target] == "" {
			continue
		}
		if now, err := (routing{}).Read(c.Target); err == nil && now == "" {
			_ = routing{}.Write(c.Target, made[c.Target]) // it fails where the interface is down: then it is not there anyway
		}
	}
	return err
}

// Origins of transactions, in the journal.
const (
	// Origin is `natkit gateway apply`'s, OriginService `natkit gateway run`'s.
	Origin        = "gateway"
	OriginService = "gateway run"
)

// Names of sysctls that a gateway needs.
const (
	Forward4   = gateway.Forward4
	Forward6   = gateway.Forward6
	Accounting = "net.netfilter.nf_conntrack_acct"
	timeWait   = "net.netfilter.nf_conntrack_tcp_timeout_time_wait"
)

// Sysctls are those that Plan reads.
var Sysctls = []string{Forward4, Forward6, Accounting, snapshot.ConntrackMax, snapshot.ConntrackBuckets, timeWait}

// Present is the state of a namespace that a plan is to change.
type Present struct {
	// Netns is its inode; Initial is true for the host's own.
	Netns   uint64
	Initial bool
	// Values are what engines have in force (tune.Gateway's values).
	Values map[gateway.Engine]string
	// Sysctls has those of Sysctls that exist. Held are those of them that natkit
	// wrote and may take back: the plan has to name them to keep them.
	Sysctls snapshot.Sysctls
	Held    map[string]bool
	// Advertised are the sysctls accept_ra of interfaces that the plan has to consider.
	Advertised []string
	// Wanted are the rules and routes of policy routing that the plan needs, Routes what these, and those that are held,
	// are now. ByMark are sysctls of interfaces that have to heed marks; false: those that had to.
	Wanted []gateway.RoutingStep
	Routes map[string]string
	ByMark map[string]bool
	// Steer says by which uplinks new connections leave, where the rules stay as they are and this does not.
	Steer string
	// Loose are those of interfaces that must not check sources strictly; false: those that must not before.
	Loose map[string]bool
	// Original has what switches among them were before gateways set them.
	Original map[string]string
	// Facts are what the costs and risks of changes depend on.
	Facts tune.Facts
	// SlabKnown: the entries of all namespaces are known, and so the time that a
	// resize of the hash takes.
	SlabKnown bool
}

// Prepared is what has to be changed for a plan, and what the user should know of it.
type Prepared struct {
	Plan tune.Plan
	// Already are values that need no change, Notes what is not done and why.
	Already, Notes []string
	// lasting are the changes that files keep over a boot.
	lasting []tune.Change
}

// Plan makes the changes that put a gateway plan, of a digest, in force: the connection table
// first, so that its size and counters are there when connections come; then routes, which packets without a
// mark do not take; then the
// rules in one transaction; forwarding last: a packet that is forwarded before its
// rules are there is tracked without a translation, and so its connection stays.
// An undo goes backwards. There is no change where all is as it should be.
func Plan(p *gateway.Plan, digest string, now Present, origin string) (Prepared, error) {
	c := collector{now: now}
	c.turn(Accounting, on, p.Accounting, "packets and bytes are counted for each connection, from its start")
	c.sizing(p.Expect)
	if err := c.routing(); err != nil {
		return Prepared{}, err
	}
	if err := c.rules(p, digest); err != nil {
		return Prepared{}, err
	}
	c.unrouting()
	c.turn(Forward4, on, p.IPv4, "the host forwards IPv4 packets")
	if p.IPv6 {
		c.advertisements(true)
	}
	c.turn(Forward6, on, p.IPv6, "the host forwards IPv6 packets")
	if !p.IPv6 {
		c.advertisements(false)
	}
	if text := Checks(p); text != "" && origin != OriginService {
		c.out.Notes = append(c.out.Notes, text)
	}
	c.out.lasting = lasting(c.all)
	c.out.Plan = tune.Plan{Origin: origin, Changes: tune.Assess(c.changes(), now.Facts)}
	return c.out, nil
}

// collector gathers the changes of a plan. held are those whose value is there
// already and has to be held: with nothing else to do, there is no reason to.
type collector struct {
	now     Present
	out     Prepared
	all     []tune.Change
	differs bool
}

func (c *collector) changes() []tune.Change {
	if !c.differs {
		return nil
	}
	return c.all
}

func (c *collector) add(change tune.Change) {
	c.all = append(c.all, change)
	c.differs = c.differs || change.Before != change.After
}

// on is the value of most switches.
const on = "1"

// heldWhy is why a value is named that is there already.
const heldWhy = "set by an earlier change of natkit's, and kept when that one is undone"

// turn sets a switch that the plan needs. One that only the gateway before needed
// becomes what it was; the limits of the table do not: natkit never lowers them itself.
func (c *collector) turn(name, value string, needed bool, why string) {
	original, set := c.now.Original[name]
	switch {
	case needed:
		c.sysctl(name, value, why)
	case set:
		c.sysctl(name, original, "the gateway before needed it, this one does not")
	}
}

// sysctl gives a sysctl a value.
func (c *collector) sysctl(name, value, why string) {
	before, ok := c.now.Sysctls[name]
	switch {
	case !ok:
		c.out.Notes = append(c.out.Notes, fmt.Sprintf("%s does not exist here: this kernel does not have it, or its module is not loaded", name))
	case !tune.SameValue(before, value):
		c.add(tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: value, Why: why})
	case c.now.Held[name]:
		c.add(tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: before,
			Why: heldWhy})
	default:
		c.out.Already = append(c.out.Already, name+" is "+before+" already")
	}
}

// number raises a sysctl that is a number.
func (c *collector) number(name string, value int64, why string) {
	c.sysctl(name, strconv.FormatInt(value, 10), why)
}

// rules puts the plan in the place of what is in force: a change for each engine, first
// those that carry out a part of it, so that nothing goes before the new rules are there.
func (c *collector) rules(p *gateway.Plan, digest string) error {
	had, differs := false, false
	for name, value := range c.now.Values {
		had = had || value != tune.GatewayNone
		differs = differs || value != after(p, name, digest)
	}
	names := append(p.Engines(), slices.Sorted(maps.Keys(c.now.Values))...)
	seen := map[gateway.Engine]bool{}
	for _, name := range names {
		before := cmp.Or(c.now.Values[name], tune.GatewayNone)
		if seen[name] || before == tune.GatewayNone && p.Part(name) == nil {
			continue
		}
		seen[name] = true
		change := tune.Change{Kind: tune.Gateway, Target: tune.GatewayTarget(c.now.Netns, string(name)), Before: before,
			After: after(p, name, digest), Why: "its rules are not part of the plan", Risk: c.risk(p, had)}
		if part := p.Part(name); part != nil {
			change.Why = summary(part) + ", in one transaction: all of it or nothing"
		}
		if name == gateway.EngineEBPF {
			change.Risk = "connections that have other addresses than its rules give break: they hold for each packet"
		}
		switch {
		case before == tune.GatewayForeign:
			return fmt.Errorf("gateway plan: what is in force %w", ErrForeign)
		case before == change.After && c.now.Steer != "":
			change.Why, change.Risk, c.differs = c.now.Steer+"; the rules stay as they are", "connections that there are stay on their wan interface", true
		case before == change.After:
			change.Why, change.Risk = "in force already", ""
		}
		if err := change.Validate(); err != nil {
			return err
		}
		c.add(change)
	}
	if !differs {
		c.out.Already = append(c.out.Already, "the rules of this plan are in force already")
	}
	return nil
}

// after is what an engine has in force with a plan.
func after(p *gateway.Plan, name gateway.Engine, digest string) string {
	if p.Part(name) == nil {
		return tune.GatewayNone
	}
	return digest
}

func (c *collector) risk(p *gateway.Plan, had bool) string {
	risk := "connections that are tracked keep the translation that they have"
	switch {
	case !had && translates(p):
		return risk + "; those that have none and that a rule is for are deleted: they begin anew, translated"
	case had && !translates(p):
		return "connections that the gateway translates now are cut, unless there are other rules of NAT on this host"
	}
	return risk
}

// summary says how much a plan does.
func summary(p *gateway.Plan) string {
	var parts []string
	add := func(n int, one, many string) {
		if n > 0 {
			parts = append(parts, units.Plural(n, one, many))
		}
	}
	add(len(p.Destinations), "translation of destinations", "translations of destinations")
	add(len(p.Sources), "translation of sources", "translations of sources")
	add(len(p.Stateless), "stateless pair", "stateless pairs")
	add(len(p.Untracked), "untracked address", "untracked addresses")
	if len(parts) == 0 {
		return "no translation"
	}
	return strings.Join(parts, ", ")
}
