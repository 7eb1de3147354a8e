package store

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// clientLog returns a logger for etcd's client that passes warnings and errors on to log; nil makes it silent.
func clientLog(log *slog.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(slogCore{log: log})
}

// slogCore writes zap entries to a slog logger.
type slogCore struct{ log *slog.Logger }

// Enabled keeps the client's chatter out: it reports every attempt at info and below.
func (c slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

// With returns a core that adds fields to every entry.
func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{log: slog.New(c.log.Handler().WithAttrs(attributes(fields)))}
}

// Check adds the core to entries that it writes.
func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// failedTry is what the client says about each try that failed; the callers of this package try again by themselves.
const failedTry = "retrying of unary invoker failed"

// Write passes one entry on.
func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	switch {
	case e.Message == failedTry:
		level = slog.LevelDebug
	case e.Level > zapcore.WarnLevel:
		level = slog.LevelError
	}
	c.log.LogAttrs(context.Background(), level, "etcd client: "+e.Message, attributes(fields)...)
	return nil
}

// Sync does nothing: slog does not buffer.
func (c slogCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []slog.Attr {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	return attrs
}
