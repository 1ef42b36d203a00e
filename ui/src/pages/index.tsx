// The pages by address. Of two that fit, the one further up is shown.
import type { ComponentType } from 'preact';
import { AuditPage } from './audit';
import { BrokersPage } from './brokers';
import { GroupPage, GroupsPage } from './groups';
import { LicencesPage } from './licences';
import { OverviewPage } from './overview';
import { TopicPage, TopicsPage } from './topics';

export const PAGES: [string, ComponentType][] = [
  ['/', OverviewPage],
  ['/topics', TopicsPage],
  ['/topics/:topic/:tab?', TopicPage],
  ['/groups', GroupsPage],
  ['/groups/:group/:tab?', GroupPage],
  ['/brokers', BrokersPage],
  ['/audit', AuditPage],
  ['/licences', LicencesPage],
];
