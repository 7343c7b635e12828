package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline/faults"
)

// maxPoll is how many records a poll takes: about 250 ms of work of the slowest core.
const maxPoll = 1000

// rebalanceTimeout is how long one member that does not answer may hold up the others' rebalance: longer than what a poll
// brought, which holds one, takes.
const rebalanceTimeout = 10 * time.Second

// batchBytes is how large a stage's batches become, as long as none of its records is larger: the client compresses one while
// another is on its way and the brokers check a third. In batches of TopicRecordBytes a whole step waits for each of these. As the
// client has one limit for batches and records, a stage that turns out to have a larger record opens another one.
const batchBytes = 4 << 20

// longSequences is from how many tokens on a group of eight rollouts may be a larger record: stages begin with larger batches.
const longSequences = 32<<10 + 1

// ProcessorConfig says what the shell runs.
type ProcessorConfig struct {
	Stage  string   // names state records, metrics and the transactional id
	Group  string   // consumer group without the run's prefix; default Stage
	Inputs []string // topics, with equal partition counts: one core gets the same partition of each
	Tables []string // topics every instance reads whole; of state, the recent ones of environment servers
	Proof  []string // topics that hold records only after this stage has worked: then there must be state
	// New makes the core of a partition from the state its predecessor left; nil for a partition that is new.
	New func(partition int32, state []byte) (Core, error)
	// Concurrency goes into the state records (environment servers); nil is 0.
	Concurrency func() int
	// TransactionTimeout is the broker's; default 4 s.
	TransactionTimeout time.Duration
	// CommitEvery is the least time between two transactions of a partition; default none. What else has changed goes along.
	CommitEvery time.Duration
	// TouchEvery is how soon after the begin of a transaction the next one may follow, where a core was touched (Out.Touch):
	// somebody waits for its state. Nothing is committed sooner, but what is given away. Default: a touch is like any change.
	TouchEvery time.Duration
	// Meter counts what the core decides; nil for nobody. It is for stages with one partition.
	Meter Meter
	// Heartbeat is how often state is written although nothing changed; default never.
	Heartbeat time.Duration
	// TickEvery is how long a poll waits for records where the core is a Ticker; default 50 ms.
	TickEvery time.Duration
	// Wake ends that wait, once a transaction may follow; nil for never. It has room for one message, since one is enough.
	Wake <-chan struct{}
}

// Processor is the shell of a core: it reads the inputs, feeds one core per partition, and writes what they emit, their
// state and the input offsets in one transaction, so that a SIGKILL at any instant changes no result (I4) and bad input
// stops nothing (I5). The rules it keeps are those of DESIGN §4.
type Processor struct {
	rt  *Runtime
	cfg ProcessorConfig

	// patience bounds the wait for the offsets of a partition that has come.
	patience time.Duration
	// take is how many records a poll takes: what one transaction holds, and fewer after one that failed, so that what is too
	// much for the brokers in their time goes through in parts.
	take int
	// batch is the most bytes of a batch.
	batch int32
	// worked says that a session has committed.
	worked bool
	// mayWait is called before something waits for the blob store; nil where no transaction is open then.
	mayWait func() error
	// began is when the last transaction did.
	began time.Time
	// faultsAsked is when the cores were last asked for theirs, faultKinds the kinds of those that they look for.
	faultsAsked time.Time
	faultKinds  []faults.Fault
	// looked is when the figures of the cores were last taken.
	looked time.Time
	// missed is how often in a row the state of a stage that has worked was not there.
	missed int

	mu    sync.Mutex // over units and their cores: the poll loop and the group's callbacks
	units map[int32]*unit
	table *table
}

// NewProcessor checks cfg; Run starts the work.
func NewProcessor(rt *Runtime, cfg ProcessorConfig) (*Processor, error) {
	if cfg.Stage == "" || len(cfg.Inputs) == 0 || cfg.New == nil || statePartition(cfg.Stage) < 0 {
		return nil, fmt.Errorf("processor %q: a stage with state, inputs and a core are needed", cfg.Stage)
	}
	for _, t := range cfg.Inputs {
		if rt.Partitions(t) != rt.Partitions(cfg.Inputs[0]) {
			return nil, fmt.Errorf("processor %s: inputs %v differ in their partitions", cfg.Stage, cfg.Inputs)
		}
	}
	if cfg.TransactionTimeout == 0 {
		cfg.TransactionTimeout = 4 * time.Second
	}
	if cfg.TickEvery == 0 {
		cfg.TickEvery = 50 * time.Millisecond
	}
	if cfg.Group == "" {
		cfg.Group = cfg.Stage
	}
	rt.Health.Set(cfg.Group, false)
	p := &Processor{rt: rt, cfg: cfg, patience: restoreDeadline, take: maxPoll, batch: batchBytes, units: map[int32]*unit{}}
	if rt.Run.SeqLen >= longSequences {
		p.batch = TopicRecordBytes
	}
	return p, nil
}

func (p *Processor) group() string { return p.rt.TopicName(p.cfg.Group) }

func (p *Processor) transactionalID() string { return p.group() + "." + p.rt.Instance }

// Run works until ctx ends, then finishes the transaction at hand and returns nil. It returns an error that is ErrFenced
// or ErrFatal; after all others it throws its client away, restores everything and goes on.
func (p *Processor) Run(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 5*time.Second
	for {
		start := time.Now()
		err := p.session(ctx)
		if ctx.Err() != nil && (err == nil || isEnd(err)) {
			return nil
		}
		if errorsIsFatal(err) || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", p.cfg.Stage, err)
		}
		if p.worked || time.Since(start) > time.Minute {
			pause.Reset()
		}
		p.worked = false
		if errors.Is(err, kerr.MessageTooLarge) && p.batch < TopicRecordBytes {
			p.batch = TopicRecordBytes
			p.rt.Log.Info("a record is larger than batches are: they become larger", "stage", p.cfg.Stage)
			continue
		}
		p.rt.Metrics.Restarts.WithLabelValues(p.cfg.Stage).Inc()
		p.rt.Log.Warn("stage starts over", "stage", p.cfg.Stage, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// A session is the time from joining the group to leaving it or failing.
type session struct {
	p          *Processor
	topicIDs   map[string][16]byte
	addOffsets bool // the broker wants AddOffsetsToTxn
	// under p.mu
	cl      *kgo.Client
	cancel  func() // ends what the client waits for
	joined  bool
	awaited map[int32]time.Time // partitions that have come, and when, whose units are not there yet
	looked  time.Time           // when what others left behind was last looked for; zero where it is to be
	pause   time.Duration       // until the next look
	again   bool                // that look is to be done again
	orphans bool                // it saw partitions that nobody has
	broken  error               // of a callback
	closed  bool                // callbacks have nothing more to do
	tx      *opened             // the transaction that has begun; nil between two
	waited  bool                // something had to wait for the blob store: nothing is sent ahead
}

func (p *Processor) session(ctx context.Context) (err error) {
	s := &session{p: p, awaited: map[int32]time.Time{}}
	if err := s.fence(ctx); err != nil {
		return err
	}
	if p.table, err = newTable(ctx, p.rt, p.cfg.Tables); err != nil {
		return err
	}
	defer p.table.close()
	if p.table != nil {
		p.rt.Metrics.policies(p.cfg.Stage, p.table.records)
	}
	p.disown()
	if err := s.open(); err != nil {
		return err
	}
	defer s.close()
	defer p.rt.Health.Set(p.cfg.Group, false)
	defer p.lookAway()
	for {
		if err := s.turn(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return s.stop()
		}
	}
}

// fence claims the transactional id: what a predecessor of this name left open is aborted now, and the predecessor,
// should it live, is fenced. Without it a join waits for the predecessor's transaction to time out. It learns on the way
// what the transactions will need: the ids of the inputs, and what the broker speaks.
func (s *session) fence(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	p := s.p
	if err := p.rt.abort(ctx, p.transactionalID(), p.cfg.TransactionTimeout); err != nil {
		return err
	}
	cl, err := p.rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	s.topicIDs = map[string][16]byte{}
	for _, t := range p.cfg.Inputs {
		details, err := adm.ListTopics(ctx, p.rt.TopicName(t))
		if err == nil {
			err = details.Error()
		}
		if err != nil {
			return fmt.Errorf("look up topic %s: %w", p.rt.TopicName(t), Denied(err, ReadTopic(p.rt.TopicName(t))))
		}
		s.topicIDs[t] = details[p.rt.TopicName(t)].ID
	}
	versions, err := adm.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("ask the brokers what they speak: %w", err)
	}
	for _, v := range versions {
		if newest, ok := v.KeyMaxVersion(int16(kmsg.TxnOffsetCommit)); ok && newest < 5 {
			s.addOffsets = true
		}
	}
	return nil
}

// open joins the group.
func (s *session) open() (err error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	if s.cl, err = s.p.rt.Client(append(s.options(), kgo.WithContext(ctx))...); err != nil {
		cancel()
		return err
	}
	s.cancel, s.p.mayWait = cancel, s.mayWait
	return nil
}

// closeGrace is how long the client may take to close in order. A join that waits for other members would hold it up.
const closeGrace = time.Second

// close leaves the session behind; a static member keeps its partitions.
func (s *session) close() {
	s.p.mu.Lock()
	s.closed = true
	s.p.mu.Unlock()
	defer s.cancel()
	defer time.AfterFunc(closeGrace, s.cancel).Stop()
	s.cl.CloseAllowingRebalance()
}

func (s *session) options() []kgo.Opt {
	p := s.p
	var topics []string
	for _, t := range p.cfg.Inputs {
		topics = append(topics, p.rt.TopicName(t))
	}
	var balancer kgo.GroupBalancer = kgo.CooperativeStickyBalancer()
	if len(topics) > 1 {
		balancer = kgo.RangeBalancer() // the same partition of every input goes to the same member
	}
	return []kgo.Opt{
		kgo.TransactionalID(p.transactionalID()), kgo.TransactionTimeout(p.cfg.TransactionTimeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(p.batch),
		kgo.ConsumerGroup(p.group()), kgo.InstanceID(p.rt.Instance), kgo.ConsumeTopics(topics...), kgo.Balancers(balancer),
		kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(time.Second),
		kgo.RebalanceTimeout(max(rebalanceTimeout, p.cfg.TransactionTimeout)),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.OnOffsetsFetched(s.fetched), kgo.AdjustFetchOffsetsFn(s.positions),
		kgo.OnPartitionsAssigned(s.assigned), kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.lost),
	}
}

// turn polls once and works on what came. Rebalances are held from the poll to the end of its last transaction.
func (s *session) turn(ctx context.Context) error {
	p := s.p
	fetches := s.poll(ctx)
	defer s.cl.AllowRebalance()
	if err := s.fetchError(fetches); err != nil {
		return err
	}
	if fetches.NumRecords() == 0 {
		s.cl.PollRecords(ended(ctx), maxPoll) // takes nothing and holds rebalances
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.check(ctx, time.Now()); err != nil {
		return err
	}
	if err := s.hear(); err != nil {
		return err
	}
	came, err := s.came(fetches)
	if err != nil {
		return err
	}
	for before, whole := p.began, true; ; whole = false {
		rest, err := s.work(ctx, came)
		if err != nil {
			p.take = max(1, p.take/2)
			return err
		}
		if len(rest) == 0 || ctx.Err() != nil { // what was not fed comes again
			if whole && !p.began.Equal(before) { // a larger poll may be one transaction, too
				p.take = min(maxPoll, p.take+max(1, p.take/8))
			}
			return nil
		}
		p.take = max(1, len(came)-len(rest)) // a poll is to bring what one transaction holds: rebalances wait for all of it
		came = rest
	}
}

// work feeds the cores, and commits: with as many of the records that came as one transaction holds. It returns the others.
func (s *session) work(ctx context.Context, came []arrival) (rest []arrival, err error) {
	p := s.p
	if rest, err = s.feed(ctx, came); err != nil {
		return nil, s.giveUp(err)
	}
	if err := p.tick(time.Now()); err != nil {
		return nil, s.giveUp(err)
	}
	p.keepFaults(time.Now())
	p.look(time.Now())
	due := p.due(time.Now())
	if len(due) == 0 {
		return rest, nil
	}
	p.began = time.Now()
	if err := s.commit(ctx, due); err != nil {
		return nil, err
	}
	p.worked = true
	return rest, nil
}

// poll waits for records: until the next tick, until something is to be committed, or until it is woken.
func (s *session) poll(ctx context.Context) kgo.Fetches {
	p := s.p
	start := time.Now()
	defer func() { p.rt.Metrics.Waited.WithLabelValues(p.cfg.Stage).Add(time.Since(start).Seconds()) }()
	wait, still := p.waits(start)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if p.cfg.Wake == nil {
		return s.cl.PollRecords(ctx, p.take)
	}
	waker := make(chan struct{})
	go func() {
		defer close(waker)
		select {
		case <-time.After(still):
		case <-ctx.Done():
			return
		}
		select {
		case <-p.cfg.Wake:
			cancel()
		case <-ctx.Done():
		}
	}()
	fetches := s.cl.PollRecords(ctx, p.take)
	cancel()
	<-waker // so that it takes no message that comes after this turn's tick
	return fetches
}

// waits is how long a poll may wait, and how long nothing can be committed.
func (p *Processor) waits(now time.Time) (wait, still time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait, still = p.cfg.TickEvery, p.began.Add(p.cfg.TouchEvery).Sub(now)
	for _, u := range p.owned() {
		if u.changed() {
			wait = min(wait, max(still, p.commitIn(u, now)))
		}
	}
	return wait, still
}

// commitIn is how long a unit that has changed waits for its transaction.
func (p *Processor) commitIn(u *unit, now time.Time) time.Duration {
	if u.out.touched && p.cfg.TouchEvery > 0 {
		return 0
	}
	return u.committed.Add(p.cfg.CommitEvery).Sub(now)
}

// check says whether the stage does its work. The client waits without end for offsets that another instance's open
// transaction holds; that is for its successor to end, or for the transaction's time-out, and no reason to stand still in silence.
func (s *session) check(ctx context.Context, now time.Time) error {
	s.p.rt.Health.Set(s.p.cfg.Group, s.joined && len(s.awaited) == 0)
	for n, since := range s.awaited {
		if now.Sub(since) > s.p.patience {
			return fmt.Errorf("the committed offsets of partition %d did not come for %v: a transaction of another instance is open, or the group's coordinator is not there", n, s.p.patience)
		}
		if now.Sub(since) > heirPatience && now.Sub(s.looked) > max(heirPatience, s.pause) {
			s.looked = time.Time{}
		}
	}
	if s.joined && (s.looked.IsZero() || s.again && now.Sub(s.looked) > s.pause) {
		if err := s.inherit(ctx); err != nil {
			s.p.rt.Log.Warn("looking for what others left behind failed", "stage", s.p.cfg.Stage, "error", err)
		}
		s.looked = time.Now() // a look may take longer than the pause between two
	}
	return nil
}

// hear tells the cores what the tables brought.
func (s *session) hear() error {
	p := s.p
	recs, err := p.table.poll()
	if err != nil {
		return err
	}
	p.rt.Metrics.policies(p.cfg.Stage, recs)
	for _, u := range p.owned() {
		if err := tell(u.core, recs); err != nil {
			return err
		}
	}
	return nil
}

// An arrival is a record of a partition that this instance has.
type arrival struct {
	*kgo.Record
	u      *unit
	in     *input
	stable int64 // the end of what was committed to its partition
}

// came lists what a poll brought.
func (s *session) came(fetches kgo.Fetches) (list []arrival, err error) {
	p := s.p
	fetches.EachPartition(func(ft kgo.FetchTopicPartition) {
		if err != nil || len(ft.Records) == 0 {
			return
		}
		u, topic := p.units[ft.Partition], p.rt.BaseName(ft.Topic)
		if u == nil || !u.owned {
			err = fmt.Errorf("records of %s/%d came, which has no core", ft.Topic, ft.Partition)
			return
		}
		// The guard: no record reaches a core before all those it has not finished.
		in := u.input(topic)
		if in.position != in.set.next {
			err = fmt.Errorf("%s/%d is read from offset %d, its core is at %d", topic, ft.Partition, in.position, in.set.next)
			return
		}
		for _, r := range ft.Records {
			list = append(list, arrival{r, u, in, ft.LastStableOffset})
		}
	})
	return list, err
}

// feed gives the cores records, until a transaction is open that is to take no more. It returns those that are left.
func (s *session) feed(ctx context.Context, came []arrival) (rest []arrival, err error) {
	ahead := s.mayAhead()
	for i, r := range came {
		if s.full() {
			return came[i:], nil
		}
		if err := r.u.feed(ctx, s.p, r.Record); err != nil {
			return nil, err
		}
		r.in.position, r.in.end = r.Offset+1, r.stable
		if ahead && !s.waited {
			if err := s.ahead(ctx, r.u); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// tick moves the clock of the cores that have one.
func (p *Processor) tick(now time.Time) error {
	for _, u := range p.owned() {
		core, ok := u.core.(Ticker)
		if !ok {
			continue
		}
		u.tellWaiting(p, now)
		finished := len(u.out.Finished)
		if err := core.Tick(now, &u.out); err != nil {
			return err
		}
		if err := u.finish(finished); err != nil {
			return err
		}
	}
	return nil
}

// due lists the units of the next transaction, which may begin now: all that have something to commit, as soon as one of them is to
// wait no longer.
func (p *Processor) due(now time.Time) (due []*unit) {
	if now.Sub(p.began) < p.cfg.TouchEvery {
		return nil
	}
	waited := false
	for _, u := range p.owned() {
		alive := p.cfg.Heartbeat > 0 && now.Sub(u.committed) >= p.cfg.Heartbeat
		if u.changed() || alive {
			due = append(due, u)
			waited = waited || alive || p.commitIn(u, now) <= 0
		}
	}
	if !waited {
		return nil
	}
	return due
}

// stop ends a session in order: cores that work in the background hand over what they have not begun.
func (s *session) stop() error {
	s.cl.PollRecords(ended(context.Background()), maxPoll)
	defer s.cl.AllowRebalance()
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if err := s.handOver(s.p.owned()); err != nil {
		return err
	}
	s.p.units = map[int32]*unit{}
	if s.p.rt.Leave {
		return s.leave()
	}
	return nil
}

// leave gives the partitions up for good: a static member that only stops keeps them for its return.
func (s *session) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), requestDeadline)
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = s.p.group()
	member := kmsg.NewLeaveGroupRequestMember()
	member.InstanceID = kmsg.StringPtr(s.p.rt.Instance)
	req.Members = append(req.Members, member)
	resp, err := req.RequestWith(ctx, s.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
		for _, m := range resp.Members {
			err = errors.Join(err, kerr.ErrorForCode(m.ErrorCode))
		}
	}
	if err != nil {
		return fmt.Errorf("leave group %s: %w", s.p.group(), Denied(err, ReadGroup(s.p.group())))
	}
	return nil
}

// handOver commits the last state of units that are about to go to another instance.
func (s *session) handOver(units []*unit) error {
	var last []*unit
	for _, u := range units {
		if core, ok := u.core.(AsyncCore); ok {
			core.Revoking()
			last = append(last, u)
		}
	}
	if len(last) == 0 {
		return nil
	}
	return s.commit(context.Background(), last)
}

// disown forgets cores before a session: they are built again. Cores that work in the background are kept, apart, until
// it is known whether the partition is still theirs.
func (p *Processor) disown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, u := range p.units {
		if u.owned, u.outputs = false, nil; !u.async() {
			delete(p.units, n)
		}
	}
}

// owned lists the units whose partitions are this instance's.
func (p *Processor) owned() []*unit {
	var list []*unit
	for _, u := range p.units {
		if u.owned {
			list = append(list, u)
		}
	}
	return list
}

func tell(core Core, recs []Record) error {
	reader, ok := core.(TableReader)
	if !ok {
		return nil
	}
	for _, r := range recs {
		if err := reader.Table(r); err != nil {
			return fmt.Errorf("table record %v: %w", r.Ref, err)
		}
	}
	return nil
}

// fetchError finds the error of a poll that ends the session.
func (s *session) fetchError(fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		switch {
		case isEnd(e.Err):
		case errors.Is(e.Err, kerr.OffsetOutOfRange):
			return Fatal("%s/%d: records this stage has not read were deleted or the topic was made again: start a new run, or restore the topic", e.Topic, e.Partition)
		default:
			return fmt.Errorf("fetch %s/%d: %w", e.Topic, e.Partition, Denied(Fenced(e.Err), ReadTopic(e.Topic), ReadGroup(s.p.group())))
		}
	}
	return nil
}

// ended is a context that has ended already.
func ended(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
