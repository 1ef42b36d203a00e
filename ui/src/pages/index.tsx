// The pages by address. Of two that fit, the one further up is shown.
import type { ComponentType } from 'preact';
import { AuditPage } from './audit';
import { BrokersPage } from './brokers';
import { DeadLettersPage, LettersPage } from './dlq';
import { GroupPage, GroupsPage } from './groups';
import { LicencesPage } from './licences';
import { MessagePage, MessagesPage } from './messages';
import { OverviewPage } from './overview';
import { AccessPage, BrokerPage, ClientsPage, DoctorPage, ReplicationPage } from './servers';
import { TopicPage, TopicsPage } from './topics';
import { TimersPage, TransactionsPage } from './waiting';

export const PAGES: [string, ComponentType][] = [
  ['/', OverviewPage],
  ['/topics', TopicsPage],
  ['/topics/:topic/:tab?', TopicPage],
  ['/groups', GroupsPage],
  ['/groups/:group/:tab?', GroupPage],
  ['/messages', MessagesPage],
  ['/messages/:topic/:id', MessagePage],
  ['/dlq', DeadLettersPage],
  ['/dlq/:group', LettersPage],
  ['/timers', TimersPage],
  ['/transactions', TransactionsPage],
  ['/brokers', BrokersPage],
  ['/brokers/:broker/:tab?', BrokerPage],
  ['/replication', ReplicationPage],
  ['/clients', ClientsPage],
  ['/doctor', DoctorPage],
  ['/access', AccessPage],
  ['/audit', AuditPage],
  ['/licences', LicencesPage],
];
