package service

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func newLog(cfg config, out io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(out, nil)).With("service", "etcd-member", "member", cfg.name)
}

// etcdLog is a logger for etcd that writes lines of the same shape as ours, from the configured level up.
func etcdLog(cfg config, out io.Writer) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(cfg.logLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	shape := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", MessageKey: "msg", CallerKey: "caller", LineEnding: "\n",
		EncodeTime: zapcore.RFC3339NanoTimeEncoder, EncodeLevel: zapcore.CapitalLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder, EncodeCaller: zapcore.ShortCallerEncoder,
	}
	core := zapcore.NewCore(zapcore.NewJSONEncoder(shape), zapcore.Lock(zapcore.AddSync(out)), level)
	return zap.New(quiet{core}, zap.AddCaller()).With(zap.String("service", "etcd-member"),
		zap.String("member", cfg.name)), nil
}

// publishPause is between two attempts of etcd to make its member known. etcd itself makes no pause: while it loads a
// snapshot it refuses its own attempts, thousands in a second, which takes a core from the load and writes megabytes of
// log.
const publishPause = 100 * time.Millisecond

// quiet drops warnings about what we want: that the Unix socket has no TLS, and that the tokens, which serve only
// inside the process, are simple ones. It holds the caller up for publishPause at the warning of a failed attempt to
// publish: no other hook of etcd's is on that path.
type quiet struct{ zapcore.Core }

func (q quiet) With(fields []zapcore.Field) zapcore.Core { return quiet{q.Core.With(fields)} }

func (q quiet) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	wanted := strings.HasPrefix(e.Message, "scheme is http or unix while") ||
		strings.HasPrefix(e.Message, "simple token is not")
	if e.Level == zapcore.WarnLevel && wanted {
		return ce
	}
	if strings.HasPrefix(e.Message, "failed to publish local member") {
		time.Sleep(publishPause)
	}
	return q.Core.Check(e, ce)
}
